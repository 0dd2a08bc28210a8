# Reads elements.csv. Prints a table of the periods; writes all of it, and more, to report.json.
# Plain shell, awk, sort and jq: it needs no program of this machine.
set -eu
cd "$(dirname "$0")"

echo "period  elements  no weight  lightest      heaviest"
awk -F, '
  NR == 1 { next }
  {
    count[$4]++
    if ($6 == "") { without[$4]++; next }
    if (!($4 in low) || $6 + 0 < low[$4]) { low[$4] = $6 + 0; light[$4] = $3 }
    if (!($4 in high) || $6 + 0 > high[$4]) { high[$4] = $6 + 0; heavy[$4] = $3 }
  }
  END {
    for (p = 1; p <= 7; p++)
      printf "%6d  %8d  %9d  %-12s  %s\n", p, count[p], without[p], light[p], heavy[p]
  }
' elements.csv

# One JSON object a line, for each element that is no solid; jq makes one document of them.
awk -F, 'NR > 1 && $7 != "solid" && $7 != "" {
  printf "{\"name\": \"%s\", \"symbol\": \"%s\", \"state\": \"%s\"}\n", $3, $2, $7
}' elements.csv | sort >no-solids.jsonl

jq -s '{
  gases: [.[] | select(.state == "gas") | .symbol],
  liquids: [.[] | select(.state == "liquid") | .name]
}' no-solids.jsonl >report.json
rm no-solids.jsonl
