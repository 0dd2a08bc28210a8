# Replaces a file with what comes on stdin. $1 the directory, $2 the name, $3 the mode or empty to
# keep it, $4 the size; without one the data ends with the boundary. $5 names the temporary file.
make=1
trap unmake EXIT
trap 'exit 1' HUP INT PIPE TERM
place "$1" "$2"
if [ -d "./$name" ]; then fail is_a_directory; fi
mode=$3
if [ -e "./$name" ]; then
  [ -f "./$name" ] || fail not_regular
  [ "$mode" ] || mode=$(stat -c %a "./$name")
fi
temporary=./$5
trap 'rm -f -- "$temporary" && unmake' EXIT
set -C # never through a link, never over a file
command exec 5>"$temporary" || fail failed
set +C
cat >&5 || fail failed
size=$4
if [ -z "$size" ]; then
  [ "$(tail -c "$((${#head} + ${#tail}))" /proc/self/fd/5)" = "$head$tail" ] || exit 4
  size=$(($(stat -L -c %s /proc/self/fd/5) - ${#head} - ${#tail}))
  dd of=/proc/self/fd/5 bs=1 seek="$size" count=0 2>/dev/null || fail failed
fi
[ "$(stat -L -c %s /proc/self/fd/5)" = "$size" ] || exit 4
case $mode in '' | 644) ;; *) chmod "$mode" /proc/self/fd/5 || fail failed ;; esac
mv -fT -- "$temporary" "./$name" || fail failed
trap - EXIT
printf 'ok\n%s' "$size"
finish
