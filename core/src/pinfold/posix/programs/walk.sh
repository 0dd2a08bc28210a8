# Lists trees by entering each directory, so that no link swapped in leads out: see _walk.py. Pairs of
# arguments: a directory, and a name in it. Answers for each directory that it has come to
# `NUMBER PATH//`: the pair, and the path from there; the records of what is in it, and `//`.
fail() {
  exit 3
}

# walk PATH: tell of the current directory.
walk() {
  printf '%s %s//\n' "$number" "$1"
  find . -mindepth 1 -maxdepth 1 ! -name '.pinfold-tmp-*' \
    -exec stat -c '%f %s %Y %y %Z %z %i %n//%N//' -- {} +
  printf '//\n'
  for each in ./* ./.[!.]* ./..?*; do
    case $each in ./.pinfold-tmp-*) continue ;; esac
    if [ -d "$each" ] && [ ! -L "$each" ]; then
      (
        here=${PWD%/}
        [ -x "$each" ] || printf '%s: Permission denied\n' "$each" >&2
        cd -P -- "$each" 2>/dev/null && [ "$PWD" = "$here/${each#./}" ] \
          && walk "${1:+$1/}${each#./}"
      )
    fi
  done
}

printf 'ok\n'
number=0
while [ $# -gt 0 ]; do
  (enter "$1" "$2" && walk '')
  shift 2
  number=$((number + 1))
done
finish
