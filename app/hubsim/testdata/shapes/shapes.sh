#!/bin/sh
# Makes the shape files beside it from the example payloads in
# api.github.com/index.json of the npm package @octokit/webhooks-examples:
#
#   npm pack @octokit/webhooks-examples@7.6.1 && tar xzf octokit-webhooks-examples-7.6.1.tgz
#   sh shapes.sh package/api.github.com/index.json
set -eu
index=$1
cd "$(dirname "$0")"
shape() { # event, action, number of the example
	jq -r --arg event "$1" --argjson n "$3" '
		.[] | select(.name == $event) | .examples[$n] as $example |
		[$example | paths] | map(select(all(.[]; type == "string"))) |
		# what depends on the example repository: its people, labels and licence
		map(select(.[:-1] | any(.[]; IN("assignee", "milestone", "license", "custom_properties", "permissions")) | not)) |
		map(. as $path | "/" + join("/") + " " + ($example | getpath($path) | type)) | sort | .[]
	' "$index" >"$1.$2.txt"
}
case $index in /*) ;; *) index=$OLDPWD/$index ;; esac
shape check_run rerequested 7
shape check_suite rerequested 7
shape installation created 1
shape issue_comment created 0
shape pull_request closed 3
shape pull_request opened 0
shape pull_request synchronize 22
