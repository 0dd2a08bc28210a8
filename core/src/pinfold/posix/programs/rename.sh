# Renames. $1 the directory and $2 the name that is, $3 and $4 those to be.
place "$1" "$2" keep
[ -L "./$name" ] || [ -e "./$name" ] || fail not_found
command exec 5<. || fail failed
home=$PWD source=/proc/self/fd/5/$name old=$name
place "$3" "$4" keep
set -- $(stat -c %d . /proc/self/fd/5/.)
[ "$1" = "$2" ] || fail other_file_system
real() { [ -d "$1" ] && [ ! -L "$1" ]; }
if real "$source"; then
  case $PWD/ in "$home/$old"/*) fail into_itself ;; esac
  if real "./$name"; then
    [ "$PWD/$name" = "$home/$old" ] || rmdir -- "./$name" || fail failed
  elif [ -e "./$name" ] || [ -L "./$name" ]; then
    fail not_a_directory
  fi
elif real "./$name"; then
  fail is_a_directory
fi
if [ "$PWD/$name" != "$home/$old" ]; then
  mv -fT -- "$source" "./$name" || fail failed
fi
printf 'ok\n'
finish
