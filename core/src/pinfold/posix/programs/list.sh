# Lists a directory: see _records.py. $1 the directory, $2 the name, $3 how: `printf` where find has
# that, `find`, or `glob` where there is none.
enter "$1" "$2"
[ -r . ] || fail permission_denied
printf 'ok\n'
# What vanishes meanwhile is no error: the records say what there is.
form='%f %s %Y %y %Z %z %i %n//%N//'
case $3 in
  printf) find . -mindepth 1 -maxdepth 1 -printf '%y %m %s %T@ %C@ %i\0%f\0%l\0' 2>/dev/null ;;
  find) find . -mindepth 1 -maxdepth 1 -exec stat -c "$form" -- {} + 2>/dev/null ;;
  *)
    for each in ./* ./.[!.]* ./..?*; do
      if [ -e "$each" ] || [ -L "$each" ]; then stat -c "$form" -- "$each"; fi
    done
    ;;
esac
finish
