# Sends many small files as tar archives. $1 an option of tar's for large blocks, if it has one; then
# pairs: a directory, and names in it joined by slashes. Answers for each pair a line `in CODE`; where
# that is `ok`, a line with the time, one with the directory's change time, the archive, and the
# directory's change time again. tar opens what it has looked at a moment before: as long as the
# directory has not changed in between, that is the same. The time is when stat's own folder in /proc
# was first looked at: after stat began, and by the clock that change times come from.
fail() {
  printf 'in %s\n' "$1"
  exit 3
}
blocks=$1
shift
printf 'ok\n'
while [ $# -gt 0 ]; do
  (
    enter "$1" .
    IFS=/
    set -f
    set -- $2
    times=$(stat -c %z /proc/self/. .) || fail failed
    printf 'in ok\n%s\n' "$times"
    tar $blocks -cf - --no-recursion -- "$@" 2>/dev/null
    exec stat -c %z .
  )
  shift 2
done
finish
