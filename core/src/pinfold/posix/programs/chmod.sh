# Sets permission bits. $1 the directory, $2 the name, $3 the mode, $4 a name for a second link.
place "$1" "$2"
if [ -d "./$name" ]; then
  if cd -P -- "./$name"; then
    inside "$PWD" || fail outside_workspace
    chmod "$3" . || fail failed
  else
    # It can't be entered: what a swap could reach here, its owner could change as well.
    chmod "$3" "./$name" || fail failed
  fi
elif [ -f "./$name" ]; then
  if command exec 5<"./$name"; then
    inside "$(readlink /proc/self/fd/5)" || fail outside_workspace
    chmod "$3" /proc/self/fd/5 || fail failed
  else
    # It can't be read, so it is held by a hard link, which follows none: out of the others' way, or
    # beside it where that is another file system.
    room "$4"
    spare=$4
    ln -- "./$name" "$spare" 2>/dev/null || { spare=./${4##*/} && ln -- "./$name" "$spare"; } || fail failed
    [ ! -L "$spare" ] && chmod "$3" "$spare"
    went=$?
    rm -f -- "$spare"
    [ $went = 0 ] || fail failed
  fi
elif [ -e "./$name" ]; then
  fail not_regular
else
  fail not_found
fi
printf 'ok\n'
finish
