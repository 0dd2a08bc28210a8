# Lists a tree, without what is ours: see _records.py. $1 the directory, $2 the name, $3 whether
# find has -printf, $4 the format of the date. First a line with the time.
enter "$1" "$2"
[ -r . ] || fail permission_denied
printf 'ok\n'
date "$4" || printf '\n'
if [ "$3" ]; then
  find . -mindepth 1 -name '.pinfold-tmp-*' -prune -o -printf '%y %m %s %T@ %C@ %i\0%P\0%l\0'
else
  find . -mindepth 1 -name '.pinfold-tmp-*' -prune -o \
    -exec stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- {} +
fi
finish
