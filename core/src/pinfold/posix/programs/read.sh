# Sends a file, or a part of it. $1 the directory, $2 the name, $3 the offset or empty for all of
# it, $4 the length.
place "$1" "$2"
if [ -d "./$name" ]; then fail is_a_directory; fi
if [ ! -f "./$name" ]; then
  if [ -e "./$name" ]; then fail not_regular; fi
  fail not_found
fi
# Opened first, then asked what was opened: nothing can be swapped in between.
command exec 5<"./$name" || fail failed
[ -f /proc/self/fd/5 ] || fail not_regular
inside "$(readlink /proc/self/fd/5)" || fail outside_workspace
printf 'ok\n'
if [ -z "$3" ]; then
  cat <&5 || exit 4
else
  dd bs=65536 iflag=skip_bytes,count_bytes skip="$3" count="$4" <&5 2>/dev/null || exit 4
fi
finish
