"""Shell scripts are read and never run: variables, lists, arithmetic, conditions, here-documents."""

import contextlib
import shutil
import subprocess
import sys

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.bash import shell
from nbtrain.foreign.bash.bash_script import read_script
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.lint import lint
from tests.foreign.public_shapes import MEGATRON
from tests.foreign.upstream import script_deepspeed


def last(text: str) -> list[str]:
    """Return the words of the script's last command; [] if there is none."""
    commands = read_script(text, "a.sh").commands
    return [word.text for word in commands[-1].words] if commands else []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a=1\nrun $a ${a}x '$a' \"$a b\"", ["run", "1", "1x", "$a", "1 b"]),
        (
            'A=(--x 1 "two words" # note\n --y)\nA+=(z)\nrun "${A[@]}"',
            ["run", "--x", "1", "two words", "--y", "z"],
        ),
        ("A=(a b)\nrun ${A[1]} ${A[@]} $A", ["run", "b", "a", "b", "a"]),
        # Without brackets, += appends to the first element.
        ("A=(a b)\nA+=c\nrun ${A[@]}", ["run", "ac", "b"]),
        ("a=x\na+=y\na+=(z)\nrun ${a[@]}", ["run", "xy", "z"]),
        ("n=3\nrun $(($n*2+1)) $((n / 2)) $((-7 / 2)) $(( 2 ** 10 ))", ["run", "7", "1", "-3", "1024"]),
        ('o=" \\\n  --a 1 \\\n  --b"\no="$o --c"\nrun $o', ["run", "--a", "1", "--b", "--c"]),
        ("run \\\n  --a \\\n  --b # end", ["run", "--a", "--b"]),
        ('x=true\nif [ "$x" = "true" ]; then\n a=1\nelse\n a=2\nfi\nrun $a', ["run", "1"]),
        (
            "x=2\nif [[ $x -gt 2 ]]; then a=1; elif [[ $x == 2 ]]; then a=2; else a=3; fi\nrun $a",
            ["run", "2"],
        ),
        ("run ${A:-5} ${A:=x} ${B-}", ["run", "5", "x"]),
        (
            "run $1 ${HOME} $(date) $((N + 1)) `pwd`",
            ["run", "$1", "${HOME}", "$(date)", "$((N + 1))", "$(pwd)"],
        ),
        ("a=0\nif [ -f x ]; then a=1; fi\nrun $a", ["run", "${a}"]),
        ("a=0\nfor i in 1 2; do\n a=$i\ndone\nrun $a", ["run", "2"]),
        ("a=0\nfor i in $(ls); do\n a=$i\ndone\nrun $a", ["run", "${a}"]),
        ("n=4\n[ $n = 5 ] && a=1\n[ $n = 4 ] && b=2 && c=3\nrun ${a-no} $b $c", ["run", "no", "2", "3"]),
        ("n=4\n[ $n = 4 ] || a=1\n[ $n = 5 ] || b=2\nrun ${a-no} $b", ["run", "no", "2"]),
        ('a=0\n[ -n "$X" ] && a=1\nrun $a', ["run", "${a}"]),
        ("a=0\n[[ 1 == 1 && -f x ]] && a=1\nrun $a", ["run", "${a}"]),
        ("a=0\n[ 1 = 2 ] && { a=1; b=2; }\nc=3\nrun $a ${b-no} $c", ["run", "0", "no", "3"]),
        ("cd x && a=1 || b=2\nrun $a ${b-no}", ["run", "1", "no"]),
        ("f () {\n a=1\n}\nb=2\nrun $b", ["run", "2"]),
        ("function f {\n a=1\n}\nb=2\nrun $b", ["run", "2"]),
        (
            'x=${3:-"MOCK"}\nif [[ "$x" == "MOCK" ]] || [[ -f y ]]; then a=1; else a=2; fi\nrun $a',
            ["run", "1"],
        ),
        ("if [ 1 = 1 ] && [ 1 = 2 ]; then a=1; else a=2; fi\nrun $a", ["run", "2"]),
        ("if [ 1 = 1 ] && [ -f y ]; then a=1; else a=2; fi\nrun $a", ["run", "${a}"]),
        # In [[, * is a wildcard unless it is quoted; in [ it is a character.
        ("m=13b\nif [[ $m == *13b* ]]; then a=1; else a=2; fi\nrun $a", ["run", "1"]),
        ("m=7b\nif [[ $m != *13b* ]]; then a=1; else a=2; fi\nrun $a", ["run", "1"]),
        ("m=7b\nif [[ $m == [78]b ]]; then a=1; else a=2; fi\nrun $a", ["run", "1"]),
        ('m=7b\nif [[ $m == "*b" ]]; then a=1; else a=2; fi\nrun $a', ["run", "2"]),
        ("m=13b\nif [ $m == *13b* ]; then a=1; else a=2; fi\nrun $a", ["run", "2"]),
        # If an earlier branch may have run, a true condition is undecided, and no later branch runs.
        ("m=x\nif [ -f f ]; then a=1; elif [ $m = y ]; then a=2; else a=3; fi\nrun $a", ["run", "${a}"]),
        ("a=0\nif [ -f f ]; then :; elif [ 1 = 1 ]; then a=1; fi\nrun $a", ["run", "${a}"]),
        ("a=0\nif [ -f f ]; then :; elif [ 1 = 1 ]; then :; else a=1; fi\nrun $a", ["run", "0"]),
        ("a=0\nif [ -f f ]; then :; elif [ 1 = 2 ]; then a=1; fi\nrun $a", ["run", "0"]),
        ("f () {\n a=1\n}\nrun done", ["run", "done"]),
        ("A=1 B=2 run x 2>&1 | tee log", ["tee", "log"]),
        ("run --save-interval 1000 > log 2>&1", ["run", "--save-interval", "1000"]),
        ("run --a 1\\\n 2>> log", ["run", "--a", "1"]),
        ("if false; then run a; fi; run b", ["run", "b"]),
        ("declare -a A=( --x 1 )\nlocal -r b=2\nrun ${A[@]} $b", ["run", "--x", "1", "2"]),
        (': "${n:=8}"\nrun $n', ["run", "8"]),
        ('A="run --a 1"\neval "$A"', ["run", "--a", "1"]),
        ('set -- --a 1\nrun "$@" $2', ["run", "--a", "1", "1"]),
        ("x=3\n((x++))\nrun $x", ["run", "4"]),
        ("x=3\nlet x+=2\nrun $x", ["run", "5"]),
        ("x=3\nif ((x >= 2)); then :; fi\nrun $x", ["run", "3"]),
        (
            "read -r -a x <<< '1 2'\nmapfile -t y < f\nprintf -v z 1\nrun ${x[@]} $y $z",
            ["run", "1", "2", "${y}", "1"],
        ),
        ("read -r -d '' C <<E\nrun --a 1\n  --b\nE\n$C", ["run", "--a", "1", "--b"]),
        ("x=a\nx[1]=b\nrun ${x[1]}", ["run", "b"]),
        # exec without a command redirects the shell's own output, and the script continues.
        ("exec > log 2>&1\nexec 3>&1\nrun a", ["run", "a"]),
        # The words of a declaration are expanded before the first variable is set.
        ("x=0\nexport x=1 y=$x\nrun $x $y", ["run", "1", "0"]),
        ("x=0\nf() { local x=$x y=$x; z=$x$y; }\nf\nrun $x $z", ["run", "0", "00"]),
        # An assignment has the status of its $(...).
        ("x=$(false) || x=1\ny=$(true) && y=2\nrun $x $y", ["run", "1", "2"]),
        ("if x=$(false); then y=1; else y=2; fi\nrun $y", ["run", "2"]),
        ("f() { echo log >&2; >&2 echo log; echo 5; }\nrun $(f)", ["run", "5"]),
        # read takes one line after the other.
        ("while read a b; do x+=$b; done <<< $'1 2\\n3 4'\nrun $x", ["run", "24"]),
        ("printf '1\\n2\\n' | { read a; read b; eval \"run $b\"; }", ["run", "2"]),
        ("IFS=: read -r a b <<< 'x:y:'\nread <<< '  z '\nrun $a $b \"$REPLY\"", ["run", "x", "y", "  z "]),
        (
            'run {a,b}{1,2} x{,y} {a..e..2} {3..1} {a,b{c,d}} {a} {a,"b c"}',
            [
                "run",
                "a1",
                "a2",
                "b1",
                "b2",
                "x",
                "xy",
                "a",
                "c",
                "e",
                "3",
                "2",
                "1",
                "a",
                "bc",
                "bd",
                "{a}",
                "a",
                "b c",
            ],
        ),
        ("run --a 1\\\n--b 2", ["run", "--a", "1--b", "2"]),
        ("A=(a b c)\nunset A[1]\nrun ${A[@]} ${#A[@]}", ["run", "a", "c", "2"]),
        ("A=([0]=a [3]=b [5]=c)\nrun ${A[@]:4} ${A[@]: -3}", ["run", "c", "b", "c"]),
        ('A=(a b c)\nrun "${A[*]:1}" "${A[@]/#/--}"', ["run", "b c", "--a", "--b", "--c"]),
        ("set -- a b c\nrun ${@: -1} ${@:2:1}", ["run", "c", "b"]),
        ("declare -A T=([a]=1)\nrun ${T[a]-none} ${T[b]-none} ${T[b]:-d}", ["run", "1", "none", "d"]),
        ("x=a/b\ny=\nrun ${x////-} ${x//\\//} ${y/*/z}", ["run", "a-b", "ab", "z"]),
        ("x=aab\nshopt -s extglob\nrun ${x##+(a)}", ["run", "b"]),
        ("run $(dirname /) $(dirname /a) $(dirname a)", ["run", "/", "/", "."]),
        ("for ((;;)); do break; done\nrun a", ["run", "a"]),
        # Forms that tree-sitter-bash does not read, and that are written in another way.
        ('n=1; x=abc; run ${x:$n:1} ${x:$n} "${x:${n}:1}"', ["run", "b", "bc", "b"]),
        ('A=(a b c); n=1; run "${A[@]:$n:2}" ${A[*]:$n}', ["run", "b", "c", "b", "c"]),
        ("set -- a b c; run ${@:$#}", ["run", "c"]),
        ("x=010; run $((10#$x + 1)) $((10#${x}))", ["run", "11", "10"]),
        ("x=n[1]; run ${x%\\]}", ["run", "n[1"]),
        ("if [ a \\< b ]; then run 1; fi", ["run", "1"]),
        ("if [ \\( a = b \\) -o c = c ]; then run 1; fi", ["run", "1"]),
        ("if [[ 1 == 1 ]] then x=4; fi\nfor i in a; do y=$i; done\nrun $x $y", ["run", "4", "a"]),
        ("set -- a b; for i do x+=$i; done; run $x", ["run", "ab"]),
        ("exec 3<>f\nexec {fd}>f\nrun a", ["run", "a"]),
        ("N=$(nvidia-smi) 2>/dev/null\nTP=4\nrun $TP", ["run", "4"]),
        ("y=$(echo 4) 2>/dev/null || y=3; run $y", ["run", "4"]),
        ("y=$(echo 4) 2>/dev/null\n", []),
        # The parser takes the line after a redirected assignment for its command.
        ("x=1\nN=$(nvidia-smi) 2>/dev/null\nif true; then x=2; fi\nrun $x", ["run", "2"]),
        ("x=1; x=$(echo 4) 2> f # why\nrun $x", ["run", "4"]),
        ("2> f x=4\nfor i in 1; do y=$x; done\nrun $y", ["run", "4"]),
        ("x=4 2> f\n((y = x + 1))\nrun $y", ["run", "5"]),
        ("x=4 2> f\ncase $x in 4) run a ;; esac", ["run", "a"]),
        ("z=${y~~}; x=4 2> f; y=5 2> f\nif true; then run $x $y; fi", ["run", "4", "5"]),
        ("for i in 1; { :; }\ny=$(echo x=5 >&2; echo 3)\nrun $y", ["run", "3"]),
        ("for i in 1; { :; }\necho x=5 > f; y=$(cat f)\nrun $y", ["run", "x=5"]),
        ("! ((1)) || x=4\nrun $x", ["run", "4"]),
        ('x=1; unset -f x; unset N; run $x "${N[*]}" "${N[@]}"', ["run", "1", ""]),
        # Options of set.
        ("set -e; x=1\n[ 1 = 2 ] && x=2\nif false; then :; fi\n! true\nfalse || x=3\nrun $x", ["run", "3"]),
        ("set -o pipefail\nif false | true; then x=1; else x=2; fi\nrun $x", ["run", "2"]),
        ("set -e; x=$(false; echo 1); (set +e; false; true); run $x", ["run", "1"]),
        ("set -f; run *.bin", ["run", "*.bin"]),
        ("set -ex -- a b\nrun $2 $#", ["run", "b", "2"]),
        ("set -- a b; set -; x=$1; set - c; run $x $1 $#", ["run", "a", "c", "1"]),
        ("n=7; let x=n*2 y=n/2; run $x $y", ["run", "14", "3"]),
        # A quoted pattern, and one that is not a word of a command, names no files.
        ('x=*.a; y=b?; [[ $x == *.a ]] && run "$x" \'*\' a\\*b "$y"', ["run", "*.a", "*", "a*b", "b?"]),
        ("x=a\nx[$N]=b\nrun ${x[0]}", ["run", "${x}"]),
    ],
)
def test_words_are_those_of_the_shell(script, expected):
    """Words are split and expanded as in a shell; values that only a running shell
    has are left as written.
    """
    assert last(script) == expected


@pytest.mark.parametrize(
    "script",
    [
        # A condition decides what a command prints.
        "x=$(if [ -f f ]; then echo 1; else echo 2; fi)",
        "x=$([ -f f ] && echo 1)",
        "f() { [ -f f ] && { echo 1; return; }; echo 2; }\nx=$(f)",
        # A condition without a variable decides what is left early.
        "x=1\nf() { [ -f f ] && return; x=2; }\nf",
        "x=1\nfor i in a b; do [ -f $i ] && break; x=$i; done",
        "x=1\nfor i in a b; do for j in c; do [ -f $j ] && break 2; done; x=$i; done",
        # Another name sets the variable.
        "x=1\nf() { local -n y=$1; y=2; }\nf x",
        "declare -n y=x\nx=1\ny=2",
        # Bash's versions differ, or the caller has to set it.
        "x=abc\nx=${x/b/&}",
        "x=${NOT_SET:?set it}",
        "x=aab\nx=${x##+(a)}",
        "x=$(printf %d 010)",
        "x=$(echo -e '\\x41')",
        "x=$(echo a | sed 's/a/b/;s/b/c/')",
        "x=1\npython -c 'import apex' && x=2",
        "for i in {1..5000}; do x=$i; done",
        # The parser does not read the form.
        "z=1; x=${z~~}",
        "x=1; x=$((0x$z))",
        "x=1; if [[ ab == a@(b|c) ]]; then x=2; fi",
        "x=1; for i in 1 2; { x=$i; }",
        "if cat <<E; then x=4; fi\na\nE",
        "declare -A T; T[a b]=4; x=${T[a b]}",
        # The shell or the login sets it.
        "x=${HOSTNAME:-here}",
        "[[ 7b =~ ([0-9]+)b ]] && x=${BASH_REMATCH[1]:-4}",
        "set -u; unset z; x=$z",
        # Files that match a pattern.
        "x=data/*.bin",
        "A=(data/*.bin); x=${A[0]}",
        "for f in data/*.bin; do x=$f; done",
        "set -- [ab].txt; x=$1",
        # Only the process that is substituted knows the line.
        "echo 5 | { read x < <(cmd); }\nread x < <(cmd)",
    ],
)
def test_a_value_that_only_the_shell_knows_is_not_decided(script):
    """A value is unknown, and not one of those that it might have."""
    words = read_script(f"{script}\nrun $x", "a.sh").commands[-1].words
    assert len(words) == 2
    assert words[1].unknowns


@pytest.mark.parametrize(
    "script",
    [
        "false",
        "[ 1 = 2 ]",
        "i=0\n((i++))",
        "f() { [ 1 = 2 ] && x=1; }\nf",
        "set -o pipefail\nfalse | true",
        "(false)",
        "if true; then false; fi",
        "for i in 1 2; do [ $i = 3 ]; done",
    ],
)
def test_set_e_ends_the_script_at_a_command_that_fails(script):
    """Commands after one that certainly fails are not run, and the failing command is named."""
    read = read_script(f"set -e\n{script}\nrun a\n", "a.sh")
    assert [command.words[0].text for command in read.commands] == []
    assert read.failed[0].startswith("a.sh:")


@pytest.mark.parametrize(
    "form", ["zz=${yy~~}", "ZZ[a b]=4", "zz=$((0x$yy))", "echo (foo) bar", "for zz in 1 2; { echo $zz; }"]
)
def test_a_form_that_is_not_read_costs_its_statement_alone(form):
    """The launch and the values around a form that the parser does not read stay what they are."""
    lines = script_deepspeed().split("\n")
    for at in range(1, len(lines), len(lines) // 4):
        while lines[at - 1].endswith("\\") or "<<" in lines[at - 1]:
            at += 1
        (job,) = jobs_of_script("\n".join([*lines[:at], form, *lines[at:]]), "a.sh")
        (expected,) = jobs_of_script(script_deepspeed(), "a.sh")
        assert [word.text for word in job.flags] == [word.text for word in expected.flags]
    script = read_script(f"a=1\n{form}\nrun\n", "a.sh")
    assert all(remark.place == "a.sh:2" for remark in script.remarks)


def test_a_substitution_is_shown_as_the_script_writes_it():
    """No message has the name that stands for a form which the parser does not read."""
    assert last("x=$(echo ${y~~} 3)\nrun $x") == ["run", "$(echo ${y~~} 3)"]


def test_a_script_that_ends_in_a_continued_line_is_read_to_its_end():
    """The search for statements ends with the text, whatever its last line continues."""
    assert last("fi\nrun\nrun a && \\\n") == ["run a &&"]


def test_texts_that_bash_does_not_read_stay_what_they_are():
    """Next to a form that the parser refuses, single-quoted texts and here-documents are not changed."""
    text = (
        "z=${y~~}\npython -c 'x = \"${a~~}\"  # $((0x$b))'\n# it's ${c~~}\n"
        'cat > f.json <<\'E\'\n{"a": "${d~~}", "b": [[ x ]] then}\nE\n'
    )
    script = read_script(text, "a.sh")
    assert script.commands[0].words[2].text == 'x = "${a~~}"  # $((0x$b))'
    assert script.documents["f.json"].text == '{"a": "${d~~}", "b": [[ x ]] then}\n'


def test_a_loop_that_takes_too_many_steps_is_refused(monkeypatch):
    """Nested loops are refused with their line after a number of steps, not followed for minutes."""
    monkeypatch.setattr(shell, "MOST_STEPS", 200)
    text = "for a in {1..9}; do for b in {1..9}; do\n run $a $b\ndone; done"
    with pytest.raises(ConfigError, match=r"^a.sh:[12]: the script's loops take more than 200 steps"):
        read_script(text, "a.sh")


def test_every_word_has_the_line_that_it_is_written_in():
    """Every word has the line where it is written: in a list, the flag's line; for a
    value, its variable's line.
    """
    script = read_script("n=24\nA=(\n  --num-layers $n\n)\ntorchrun x.py ${A[@]}\n", "a.sh")
    places = {word.text: word.place for word in script.commands[-1].words}
    assert places == {"torchrun": "a.sh:5", "x.py": "a.sh:5", "--num-layers": "a.sh:3", "24": "a.sh:1"}


def test_here_documents_are_files():
    """A here-document becomes a file; variables are expanded unless the delimiter is quoted.

    Its place is the first line of the body.
    """
    script = read_script('n=8\ncat <<E > a.json\n{"x": $n}\nE\ncat <<\'E\' > b.json\n{"x": $n}\nE\n', "a.sh")
    assert {name: (word.text, word.place) for name, word in script.documents.items()} == {
        "a.json": ('{"x": 8}\n', "a.sh:3"),
        "b.json": ('{"x": $n}\n', "a.sh:6"),
    }


def test_exported_variables_and_comments_are_kept():
    """Exported variables are kept for the ranks' environment, and comments for Slurm's directives."""
    script = read_script("#SBATCH --nodes=4\nexport A=1\nB=2\nexport B\nrun", "a.sh")
    assert {name: word.text for name, word in script.exported.items()} == {"A": "1", "B": "2"}
    assert script.comments == [("a.sh:1", "#SBATCH --nodes=4")]


WAYS_TO_RUN = """
{touch}a
x=$({touch}b) y=`{touch}c` z=$((1 + $({touch}d)))
cat <({touch}e) > >({touch}f)
eval '{touch}g' "$({touch}h)"
source <({touch}i)
. $({touch}j)
bash -c '{touch}k'
python3 -c 'open("{folder}/l", "w")'
trap '{touch}m' EXIT DEBUG ERR RETURN
f() {{ {touch}n; }}; f; f &
PROMPT_COMMAND='{touch}o'
PS4='$({touch}p)'; set -x; : traced; set +x
find . -maxdepth 0 -exec {touch}q \\;
xargs touch <<< {folder}/r
: ${{A:=$({touch}s)}} ${{B:-`{touch}t`}} ${{C[$({touch}u)]}}
[[ -v D[$({touch}v)] ]] || (( D[$({touch}w)] ))
echo > {folder}/x; > {folder}/y; exec 3> {folder}/z
coproc {touch}1
command_not_found_handle() {{ {touch}2; }}; nothing_of_this_name
BASH_ENV=<({touch}3) ENV={folder}/4 bash -c true
printf -v "E[\\$({touch}5)]" x; unset "F[\\$({touch}6)]"
read -r G[$({touch}7)] <<< x; declare "H=$({touch}8)"
cat <<E > {folder}/9
$({touch}0)
E
alias ls='{touch}A'; ls
{touch}B | {touch}C && {touch}D || {touch}E2; ! {touch}F
zz=${{yy~~$({touch}G)}}
"""


def test_nothing_is_run(tmp_path, monkeypatch):
    """A script that would leave a file in every way that bash has leaves none, whether it is imported or
    checked, and whether it stands alone or in a manifest.
    """
    folder, inputs = tmp_path / "left", tmp_path / "inputs"
    folder.mkdir()
    inputs.mkdir()
    monkeypatch.chdir(inputs)
    text = WAYS_TO_RUN.format(touch=f"touch {folder}/", folder=folder)
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MEGATRON} --exit-interval $(touch {folder}/H)"
    (inputs / "a.sh").write_text(f"{text}\n{launch}\n")
    container = {"name": "pytorch", "image": "x", "command": ["bash", "-c", f"{text}\n{launch}"]}
    specs = {"Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    manifest = {"kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": specs}}
    (inputs / "a.yaml").write_text(yaml.safe_dump(manifest))
    assert len(read_script(text, "a.sh").commands) > 15
    for name in ("a.sh", "a.yaml"):
        for use in (import_files, lint):
            with contextlib.suppress(ConfigError):
                use([inputs / name], ["tokenizer.vocab_size=50257", "resources.gpus_per_node=8"])
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in inputs.iterdir()) == ["a.sh", "a.yaml"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_leaves_files_by_these_ways(tmp_path):
    """The script above does leave files if bash runs it, so that the test before is able to fail."""
    text = WAYS_TO_RUN.format(touch=f"touch {tmp_path}/", folder=tmp_path)
    text = text.replace("zz=${yy~~$(", "zz=${yy:-$(")
    subprocess.run(
        ["bash", "--norc", "-c", text],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert len(list(tmp_path.iterdir())) > 25


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('a\nrun "x', 'a.sh:2: this is not bash, or a form of bash that nbtrain does not read: "x.'),
        ("A=(1 2", "a.sh:1: the script cannot be read as bash: ) is missing."),
        (
            "cat <<E > x\n1",
            ("a.sh:1: the script cannot be read as bash: the line that ends the here-document is missing."),
        ),
        ("run ${x", "a.sh:1: this is not bash, or a form of bash that nbtrain does not read: ${x."),
        ("a=1\nif [ $a = 1 ]; then\nrun", "a.sh:2: "),
        ("a=1\nDATA=<path of the data>\nrun $DATA", "a.sh:2: <path of the data> is a placeholder"),
    ],
)
def test_a_script_that_does_not_end_is_named_with_its_line(script, message):
    """A construct without an end is reported with the line where it begins."""
    with pytest.raises(ConfigError) as error:
        read_script(script, "a.sh")
    assert str(error.value).startswith(message)


@pytest.mark.slow
def test_variables_that_double_without_end_are_refused():
    """Variables that repeatedly double are refused, because 2 KB of script could fill the memory."""
    text = "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 30 + "run $A\n"
    with pytest.raises(ConfigError, match=r"a.sh:8: the script's variables expand to more than 5,000,000 "):
        read_script(text, "a.sh")


@pytest.mark.parametrize(
    "form", ["${A##*/}", "${A#*/}", "${A%%8}", "${A%8}", "${A/x/}", "${A//a}", "${A/#a}"]
)
def test_a_value_that_is_too_long_for_a_pattern_is_reported_with_the_limit(form):
    """A value of 2,000 characters is compared with a pattern; of a longer one, the reason names both."""
    longest = "a" * 1998 + "/8"
    assert read_script(f"A={longest}\nrun {form}", "a.sh").commands[0].words[1].unknowns == ()
    [unknown] = read_script(f"A={longest}8\nrun {form}", "a.sh").commands[0].words[1].unknowns
    assert (unknown.name, unknown.place) == ("A", "a.sh:2")
    assert unknown.reason == (
        f"nbtrain does not evaluate {form}: its value has 2,001 characters, and nbtrain compares at most "
        "2,000 with a pattern"
    )


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("b" * 2001, "its pattern has 2,001 characters, and nbtrain reads at most 2,000"),
        ("*b*b*b*b*", "its pattern has 5 asterisks, and nbtrain reads at most 4"),
    ],
)
def test_a_pattern_that_is_too_long_is_reported_with_the_limit(pattern, limit):
    [unknown] = read_script(f"A=b\nrun ${{A#{pattern}}}", "a.sh").commands[0].words[1].unknowns
    assert unknown.reason == f"nbtrain does not evaluate ${{A#{pattern}}}: {limit}"


@pytest.mark.slow
def test_the_parser_is_loaded_when_a_script_is_read():
    """Importing the package costs nothing of tree-sitter; only a script loads it."""
    code = (
        "import sys, nbtrain.foreign.lint; assert 'tree_sitter' not in sys.modules; "
        "from nbtrain.foreign.bash.bash_script import read_script; read_script('a=1', 'a.sh'); "
        "assert 'tree_sitter' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_text_that_bash_cannot_read_is_one_command():
    """The text of `bash -c` that is not bash is a command of its own, so that it can be named."""
    (command,) = read_script("bash -c 'if then ('", "a.sh").commands
    inner = command.read_inner(command.values[2], [], {})
    assert [word.text for started in inner for word in started.words] == ["if then ("]
