# Finds out what the target has, by trying it. $1 names the control directory to be; then the
# physical workspace and the writable roots. Answers in lines: `root PATH//` or `absent PATH//`,
# `control PATH//`, `has THING`, `lacks THING`.
printf 'ok\n'
id=$1
shift
for place in "$@"; do
  if cd -P -- "$place"; then printf 'root %s//\n' "$PWD"; else printf 'absent %s//\n' "$place"; fi
done
for tool in cat chmod env find grep ln mkdir mv readlink rm rmdir sleep stat \
  date dd sha256sum tail tar; do
  command -v "$tool" >/dev/null || printf 'lacks %s\n' "$tool"
done
[ -r /proc/self/environ ] && [ -d /proc/self/fd ] || printf 'lacks /proc\n'

for place in "${TMPDIR:-/tmp}" /dev/shm /var/tmp /run "$1"; do
  control=$place/$id
  if mkdir -m 700 -- "$control"; then break; fi
  control=
done
[ "$control" ] || {
  printf 'lacks control\n'
  finish
}
printf 'control %s//\n' "$control"
cd -P -- "$control" || exit 4

has() { printf 'has %s\n' "$1"; }
: >a
mv -fT a b && [ -f b ] || printf 'lacks mv -T\n'
ln -sT a c && [ -L c ] || printf 'lacks ln -T\n'
case $(stat -c '%f %s %Y %y %Z %z %i %n//%N//' b) in
  81a4\ 0\ [0-9]*/) ;;
  *) printf 'lacks stat -c\n' ;;
esac
[ "$(find . -maxdepth 0 -printf x)" = x ] && has find-printf
case $(date +%s%N) in *[!0-9]* | '') ;; *) has date-ns ;; esac
printf abcdef >b
[ "$(dd if=b bs=4 skip=1 count=3 iflag=skip_bytes,count_bytes)" = bcd ] && has dd-bytes
tar -b128 -cf c b && has tar-blocks
setsid -- true && has setsid
case $(rm --version) in *GNU*) has rm-by-descriptor ;; esac
command time -o a -f '' sh -c 'kill -9 $$'
read -r answer <a
[ "$answer" = 'Command terminated by signal 9' ] && has time
if env --default-signal true; then
  (exit 137) &
  wait
  jobs >a
  read -r answer <a
  case $answer in
    *'Done(137)'*)
      sh -c 'kill -9 $$' &
      wait
      jobs >a
      read -r answer <a
      case $answer in *Killed*) has jobs ;; esac
      ;;
  esac
fi
rm -f a b c
finish
