# Every program starts with this: $1 the roots, each ended by //; $2 and $3 the halves of the
# boundary, the last first. A program answers on stdout: a line `ok` or `error CODE`, then its
# output, then the boundary. No boundary: it did not come to its end.
roots=$1 tail=$2 head=$3
shift 3
umask 022

fail() {
  printf 'error %s\n' "$1"
  exit 3
}

finish() {
  printf '%s%s' "$head" "$tail"
  exit 0
}

# room FILE: make the directory of ours that a file is to lie in, should it not be there (any more).
room() {
  [ -d "${1%/*}" ] || mkdir -p -m 700 -- "${1%/*}"
}

# inside PATH: it is a root, or lies in one.
inside() {
  known=$roots
  while [ "$known" ]; do
    case $1/ in "${known%%//*}"/*) return 0 ;; esac
    known=${known#*//}
  done
  return 1
}
