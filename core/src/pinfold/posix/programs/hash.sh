# Hashes files. Pairs of arguments: a directory, and names in it joined by slashes. Answers for each
# pair a line `in CODE`; where that is `ok`, a line with the time, one with the directory's change
# time, the digests of what can be read, the records of all, `//`, and the directory's change time
# again. What was opened is what the names mean if that has stayed: see pack.sh.
fail() {
  printf 'in %s\n' "$1"
  exit 3
}
printf 'ok\n'
while [ $# -gt 0 ]; do
  (
    enter "$1" .
    IFS=/
    set -f
    set -- $2
    times=$(stat -c %z /proc/self/. .) || fail failed
    printf 'in ok\n%s\n' "$times"
    sha256sum -- "$@" 2>/dev/null
    stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- "$@" 2>/dev/null
    printf '//\n'
    exec stat -c %z .
  )
  shift 2
done
finish
