# A pipeline with many short and some long processes.
set -eu
seq 1 20000 | awk '{ print $1 % 97, $1 }' | sort -n -k1,1 -k2,2 | cut -d' ' -f1 | uniq -c |
  sed 's/^ *//' | tee made-by-tee | gzip -9 | gzip -d | sha256sum
find . -name '*.py' -print0 | sort -z | xargs -0 -n1 -P4 sh -c 'wc -c <"$0"' | awk '{ n += $1 } END { print (n > 0) }'
{ echo a; echo b; } | while read -r line; do echo "$line" | tr a-z A-Z; done | paste -s -d+ -
