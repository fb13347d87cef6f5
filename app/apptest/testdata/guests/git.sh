# git below /tmp: the workspace must have no repository.
set -eu
export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.com GIT_AUTHOR_DATE=2026-01-01T00:00:00Z
export GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.com GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
git init -q -b main /tmp/a
cp -R . /tmp/a/files
cd /tmp/a
git add .
git commit -q -m one
git checkout -q -b side
echo more >>files/README.md
git commit -q -a -m two
git checkout -q main
git merge -q --no-ff -m merged side
git gc -q
git clone -q /tmp/a /tmp/b
git -C /tmp/b fsck --strict
git -C /tmp/b worktree add -q /tmp/c HEAD~1
test ! -e /tmp/c/.git/config
git -C /tmp/b log --format=%s | sort
git -C /tmp/b cat-file --batch-all-objects --batch-check='%(objecttype)' | sort | uniq -c | awk '$2 == "commit" { print $1 }'
cd /workspace
git -C /tmp/b format-patch -q -o /workspace/made HEAD~1
ls made
