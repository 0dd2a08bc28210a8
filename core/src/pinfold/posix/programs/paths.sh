# place DIRECTORY NAME [keep]: enter the directory that holds NAME and set $name to the last
# component, which is no link any more unless `keep` is given. Links are followed by hand, and what
# counts is where the shell has arrived: a directory that is entered can't be swapped. What the
# text of a path says is never believed. With $make set, missing directories are made, and $made has
# a letter for each of them that the shell is in, one in the other.
make= made=
place() {
  name=$2
  if cd -P -- "$1" 2>/dev/null; then
    inside "$PWD" || fail outside_workspace
    if [ "${3-}" ] || [ ! -L "./$name" ]; then return; fi
    rest=$name
  else
    rest=$1/$2
  fi
  hops=0
  while :; do
    case $rest in /*) made= && cd -P / || fail failed ;; esac
    while :; do case $rest in /*) rest=${rest#/} ;; *) break ;; esac; done
    case $rest in
      */*)
        name=${rest%%/*} rest=${rest#*/} last=
        # What follows is relative, however many slashes stand before it.
        while :; do case $rest in /*) rest=${rest#/} ;; *) break ;; esac; done
        ;;
      *) name=${rest:-.} rest= last=1 ;;
    esac
    if [ -L "./$name" ] && [ "$last${3-}" != 1keep ]; then
      hops=$((hops + 1))
      [ $hops -le 40 ] || fail link_loop
      if text=$(readlink -n "./$name" && printf /); then
        rest=${text%/}${rest:+/$rest}
      else
        rest=$name${rest:+/$rest} # swapped meanwhile: look again
      fi
      continue
    fi
    if [ "$last" ]; then
      if [ "$name" = .. ]; then
        cd -P .. || fail failed
        name=. made=
      fi
      inside "$PWD" || fail outside_workspace
      return
    fi
    if cd -P -- "./$name" 2>/dev/null; then made= && continue; fi
    inside "$PWD" || fail outside_workspace
    if [ -d "./$name" ]; then fail permission_denied; fi
    if [ -e "./$name" ]; then fail not_a_directory; fi
    [ "$make" ] || fail not_found
    if mkdir -- "./$name"; then fresh=x; else fresh= && [ -d "./$name" ] || fail failed; fi
    cd -P -- "./$name" || fail failed
    made=${fresh:+x$made}
  done
}

# unmake: remove the directories that were made again, but those that others have used since.
unmake() {
  while [ "$made" ]; do
    made=${made#x} name=${PWD##*/}
    cd -P .. && rmdir -- "./$name" || return
  done 2>/dev/null
}

# enter DIRECTORY NAME: go into the directory itself.
enter() {
  place "$1" "$2"
  cd -P -- "./$name" 2>/dev/null || {
    if [ -d "./$name" ]; then fail permission_denied; fi
    if [ -e "./$name" ]; then fail not_a_directory; fi
    fail not_found
  }
  inside "$PWD" || fail outside_workspace
}
