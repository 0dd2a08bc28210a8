# Names of ours in a directory, each ended by //. $1 the directory; $2 whether those left over from
# interrupted writes are removed from the whole tree, but for a restore's.
enter "$1" .
printf 'ok\n'
if [ "$2" ]; then
  find . -name '.pinfold-tmp-restore*' -prune -o -name '.pinfold-tmp-*' -prune -exec rm -rf -- {} +
fi
for each in .pinfold-tmp-*; do
  if [ -e "$each" ] || [ -L "$each" ]; then printf '%s//\n' "$each"; fi
done
finish
