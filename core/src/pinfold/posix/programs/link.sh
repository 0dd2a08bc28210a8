# Makes a symbolic link. $1 the directory, $2 the name, $3 the text.
place "$1" "$2" keep
if [ -L "./$name" ] || [ -e "./$name" ]; then fail already_exists; fi
ln -sT -- "$3" "./$name" || {
  if [ -L "./$name" ] || [ -e "./$name" ]; then fail already_exists; fi
  fail failed
}
printf 'ok\n'
finish
