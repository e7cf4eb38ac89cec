#!/bin/sh
# Draws docs/picture.svg, the picture of the README, from docs/journey.md, which a test records from a
# real terminal. Run it after the journey was recorded again: sh docs/picture.sh > docs/picture.svg
# It adds nothing: the lines are those of the page. Only the prompt has a colour of its own.
set -eu
cd "$(dirname "$0")"
awk '
    function escaped(text) {
        gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
        gsub(/ /, "\\&#160;", text)
        return text
    }
    /^```console$/ { fresh = 1; next }
    /^```$/ { if (shown) lines[++count] = ""; shown = 0; next }
    fresh {
        fresh = 0
        shown = /^\$ overmind (run --name mend|done mend)/
    }
    shown { lines[++count] = $0 }
    END {
        if (count < 30) { print "docs/journey.md has no such run" > "/dev/stderr"; exit 1 }
        height = 24 + 17 * (count - 1)
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 %d\" ", height
        printf "role=\"img\" aria-label=\"A terminal: an agent fixes a failing test, and its work is merged\">\n"
        printf "<rect width=\"900\" height=\"%d\" rx=\"6\" fill=\"#1b1f27\"/>\n", height
        print "<g font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"12.5\" fill=\"#d5d9e0\">"
        for (i = 1; i < count; i++) {
            colour = lines[i] ~ /^\$ / ? " fill=\"#8fd694\"" : ""
            printf "<text x=\"14\" y=\"%d\"%s>%s</text>\n", 8 + 17 * i, colour, escaped(lines[i])
        }
        print "</g>\n</svg>"
    }
' journey.md
