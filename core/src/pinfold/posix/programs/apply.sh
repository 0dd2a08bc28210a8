# Changes many names at once. $1 a root and $2 the name in it of a directory with new files, one
# subdirectory for each group of them; $3 `m` or `p` where that comes on stdin first, as tar, whose
# times are of no account (m); $4 whether it is removed in the end; $5 whether rm -r walks by
# descriptors. Then fours: what to do, a directory, names in it joined by slashes, and one thing more.
# Answers for each four a line `in CODE`; before it, a line `odd NAME//` for each that is left to the
# caller: a link, or no file. All of it can be done again after an interruption.
fail() {
  printf 'in %s\n' "$1"
  exit 3
}

# purge NAME HERE: as in remove.sh.
purge() {
  cd -P -- "./$1" && [ "$PWD" = "$2/$1" ] || return 1
  find . ! -name . -prune ! -type d -exec rm -f -- {} +
  for each in ./* ./.[!.]* ./..?*; do
    if [ -d "$each" ] && [ ! -L "$each" ]; then purge "${each#./}" "$PWD" || return 1; fi
  done
  cd -P .. && [ "$PWD" = "$2" ] && rmdir -- "./$1"
}

# clear NAME: remove a directory of the current one, if it is there, and all in it.
clear() {
  [ -d "./$1" ] && [ ! -L "./$1" ] || return 0
  if [ "$by_descriptor" ]; then rm -rf -- "./$1"; else purge "$1" "$PWD"; fi
}

is_odd() { [ -L "$1" ] || { [ -e "$1" ] && [ ! -f "$1" ]; }; }

# meet NAME...: pass the modes of files that are there on to those that replace them; leave what is
# no file to the caller.
meet() {
  for name; do
    if is_odd "./$name"; then
      printf 'odd %s//\n' "$name"
      rm -f -- "$stage/$name"
    elif [ -e "./$name" ]; then
      mode=$(stat -c %a "./$name")
      [ "$mode" = 644 ] || chmod "$mode" "$stage/$name" || fail failed
    fi
  done
}

# still NAME...: move those that have not been moved before.
still() {
  for name; do
    shift
    if [ -e "$name" ]; then set -- "$@" "$name"; fi
  done
  [ $# = 0 ] || mv -f -- "$@" /proc/self/fd/6/.
}

# apply EXTRA NAME...
apply() {
  extra=$1
  shift
  case $kind in
    unlink) rm -f -- "$@" || fail failed ;;
    purge)
      set +f
      for name; do clear "$name" || fail failed; done
      ;;
    mkdir)
      mkdir -- "$@"
      for name; do [ -d "./$name" ] || fail failed; done
      ;;
    link)
      if [ "$(readlink -n "./$1" && printf /)" != "$extra/" ]; then
        rm -f -- "./$1" && ln -sT -- "$extra" "./$1" || fail failed
      fi
      ;;
    chmod)
      # What a swap could reach after this, its owner could change as well.
      for name; do [ ! -L "./$name" ] || fail changed; done
      chmod "$extra" -- "$@" || fail failed
      ;;
    files | contents)
      command exec 6<. || fail failed
      stage=$stage/$extra
      if [ "$kind" = contents ]; then
        # Mostly there is nothing yet, or plain files of mode 644 (81a4).
        for mode in $(stat -c %f -- "$@" 2>/dev/null); do
          if [ "$mode" != 81a4 ]; then
            meet "$@"
            break
          fi
        done
      fi
      cd -P -- "$stage" || fail failed
      mv -f -- "$@" /proc/self/fd/6/. || still "$@" || fail failed
      ;;
  esac
}

root=$1 new=$2 unpack=$3 clean=$4 by_descriptor=$5
stage=$root/$new
shift 5
leave() { cd -P -- "$root" && inside "$PWD" && clear "$new"; }
if [ "$unpack" ]; then
  cd -P -- "$root" && inside "$PWD" || { printf 'error outside_workspace\n' && exit 3; }
  trap leave EXIT
  trap 'exit 1' HUP INT PIPE TERM
  mkdir -m 700 -- "./$new" && cd -P -- "./$new" && [ "$PWD" = "$stage" ] \
    && (umask 0 && tar "-xo${unpack}f" -) || { printf 'error failed\n' && exit 3; }
  [ -f ./end ] || exit 4 # the last member: it came whole
fi
printf 'ok\n'
while [ $# -gt 0 ]; do
  (
    trap - EXIT
    kind=$1
    case $kind in
      mkdir | link) make=1 ;;
      files | contents)
        make=1
        if [ ! -e "$2" ] && [ ! -L "$2" ] && inside "${2%/*}"; then
          # A directory that is new altogether, and no root, takes one rename.
          enter "${2%/*}" .
          if mv -T -- "$stage/$4" "./${2##*/}"; then
            printf 'in ok\n'
            exit
          fi
        fi
        ;;
    esac
    enter "$2" .
    extra=$4
    IFS=/
    set -f
    set -- $3
    unset IFS
    apply "$extra" "$@"
    printf 'in ok\n'
  )
  shift 4
done
trap - EXIT
if [ "$clean" ]; then leave; fi
finish
