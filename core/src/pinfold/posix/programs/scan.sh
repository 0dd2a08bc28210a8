# Lists a tree, without what is ours: see _records.py. $1 the directory, $2 the name, $3 whether
# find has -printf, $4 the format of the date. First a line with the time. A find without -printf
# goes by paths, which a link swapped in can lead out: it has a line with the time by the clock that
# change times come from, as in pack.sh; and after the records `//`, and then, for each directory,
# its change time and name and `//`, those in it first: see _walk.py.
enter "$1" "$2"
[ -r . ] || fail permission_denied
printf 'ok\n'
date "$4" || printf '\n'
if [ "$3" ]; then
  find . -mindepth 1 -name '.pinfold-tmp-*' -prune -o -printf '%y %m %s %T@ %C@ %i\0%P\0%l\0'
else
  stat -c %z /proc/self/. || printf '\n'
  find . -mindepth 1 -name '.pinfold-tmp-*' -prune -o \
    -exec stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- {} +
  printf '//\n'
  find . -depth -type d -exec stat -c '%z %n//' -- {} + 2>/dev/null
fi
finish
