# Makes a directory. $1 the directory, $2 the name, $3 whether parents are made, $4 whether it may
# be there already.
make=$3
trap unmake EXIT
trap 'exit 1' HUP INT PIPE TERM
place "$1" "$2"
if [ -d "./$name" ]; then
  [ "$4" ] || fail already_exists
elif [ -e "./$name" ]; then
  fail already_exists
else
  mkdir -- "./$name" || { [ "$4" ] && [ -d "./$name" ]; } || fail failed
fi
trap - EXIT
printf 'ok\n'
finish
