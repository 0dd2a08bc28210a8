# Sends many small files as tar archives. $1 a file of ours to take the time with; then pairs: a
# directory, and names in it joined by slashes. Answers for each pair a line `in CODE`; where that
# is `ok`, a line with the change times of the directory and of our file, the archive, and the
# directory's change time again. tar opens what it has looked at a moment before: as long as the
# directory has not changed in between, that is the same.
fail() {
  printf 'in %s\n' "$1"
  exit 3
}
clock=$1
shift
room "$clock"
printf 'ok\n'
while [ $# -gt 0 ]; do
  (
    enter "$1" .
    printf 'in ok\n'
    IFS=/
    set -f
    set -- $2
    printf x >"$clock"
    stat -c %z . "$clock"
    tar -cf - --no-recursion -- "$@" 2>/dev/null
    stat -c %z .
  )
  shift 2
done
rm -f -- "$clock"
finish
