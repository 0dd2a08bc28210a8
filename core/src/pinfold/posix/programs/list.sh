# Lists a directory: see _records.py. $1 the directory, $2 the name, $3 whether find has -printf.
enter "$1" "$2"
[ -r . ] || fail permission_denied
printf 'ok\n'
# What vanishes meanwhile is no error: the records say what there is.
if [ "$3" ]; then
  find . -mindepth 1 -maxdepth 1 -printf '%y %m %s %T@ %C@ %i\0%f\0%l\0' 2>/dev/null
else
  find . -mindepth 1 -maxdepth 1 -exec stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- {} + 2>/dev/null
fi
finish
