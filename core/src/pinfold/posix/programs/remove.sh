# Removes a name. $1 the directory, $2 the name, $3 whether with all in it, $4 whether rm -r walks
# by descriptors (GNU), so that no link swapped in can lead it out.
place "$1" "$2" keep

# purge NAME HERE: remove a directory of the current one, which is HERE, and all in it. It goes
# where it goes by entering, and looks where it has arrived.
purge() {
  cd -P -- "./$1" && [ "$PWD" = "$2/$1" ] || return 1
  find . ! -name . -prune ! -type d -exec rm -f -- {} +
  for each in ./* ./.[!.]* ./..?*; do
    if [ -d "$each" ] && [ ! -L "$each" ]; then purge "${each#./}" "$PWD" || return 1; fi
  done
  cd -P .. && [ "$PWD" = "$2" ] && rmdir -- "./$1"
}

if [ -d "./$name" ] && [ ! -L "./$name" ]; then
  if [ -z "$3" ]; then
    rmdir -- "./$name" || fail failed
  elif [ "$4" ]; then
    rm -rf -- "./$name" || fail failed
  else
    purge "$name" "$PWD" || fail failed
  fi
else
  [ -L "./$name" ] || [ -e "./$name" ] || fail not_found
  rm -f -- "./$name" || fail failed
fi
printf 'ok\n'
finish
