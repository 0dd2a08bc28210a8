# Facts about names. Pairs of arguments: a directory, and names in it joined by slashes. Answers for
# each pair a line `in CODE`; where that is `ok`, the records of the names that exist, and `//`.
fail() {
  printf 'in %s\n' "$1"
  exit 3
}
printf 'ok\n'
while [ $# -gt 0 ]; do
  (
    enter "$1" .
    printf 'in ok\n'
    IFS=/
    set -f
    set -- $2
    case "/$*/" in
      */-/*) for each; do # for GNU stat that is stdin
        shift
        set -- "$@" "./$each"
      done ;;
    esac
    stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- "$@" 2>/dev/null
    printf '//\n'
  )
  shift 2
done
finish
