#!/bin/sh
# The installed tree works after it was moved: a cell from it answers, with nothing of the build tree in its way.
# usage: install.sh BUILD_DIR CMAKE
set -eu
build=$1 cmake=$2
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
install() { DESTDIR=$1 "$cmake" --install "$build" --prefix "$2" >"$there/log" 2>&1 || { cat "$there/log"; exit 1; }; }
install "" "$there/first"
# As packages of distributions are made: the same tree below another root.
install "$there/root" /opt/baton
diff -r "$there/root/opt/baton" "$there/first"
rm -r "$there/root"
mv "$there/first" "$there/second"

# Every library of a program comes from the tree, glibc's aside.
for program in "$there"/second/bin/baton-*; do
  ldd "$program" | awk '/=>/ {print $3}' | grep -v "^$there/second/" |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so' && { echo "$program uses libraries outside"; exit 1; }
done

cd /
out=$(env -i PATH=/usr/bin:/bin "$there/second/bin/baton" run --model "$there/second/share/baton/models/demo" \
  --prefill 1 --decode 1 --chat 'Good morrow.' --max-tokens 8 2>"$there/log") || { cat "$there/log"; exit 1; }
cat "$there/log"
[ -n "$out" ] || { echo "no text came"; exit 1; }
grep -q 'rank 0, prefill: .* handed over' "$there/log"
grep -q 'rank 1, decode: ' "$there/log"
