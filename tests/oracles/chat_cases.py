"""Golden renderings of chat templates by Jinja, set up as Hugging Face's apply_chat_template() does.

    python tests/oracles/chat_cases.py --out tests/fixtures/chat.jsonl --seed 1

One JSON object a line: {"template", "messages": [{"role", "content"}], "bos", "eos", "text"}, text null where Jinja
refuses.  First what templates of the families do, in words of our own; then random ones.  Made with Jinja 3.1.6.
"""
import argparse, json, random
from datetime import datetime
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

BOS, EOS = "<bos>", "<eos>"
TALKS = [
    [("system", "Be brief."), ("user", "Hi\n"), ("assistant", " <think>hm</think> Hello. "), ("system", "Rhyme."),
     ("user", "Wh\u3000y? \u00e9\u3000")],
    [("user", "x")],
    [],
    [("user", "a"), ("assistant", "b"), ("user", "")],
    [("user", "a"), ("assistant", "<think>\n1\n</think>\n\nb\n")],
]

DEFAULT_PROMPT = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
JOIN_SYSTEM = """{%- for m in messages %}{%- if m['role'] == 'system' %}
  {%- if ns.begins %}{% set ns.system = ns.system + m['content'] %}{% set ns.begins = false %}
  {%- else %}{% set ns.system = ns.system + '\\n\\n' + m['content'] %}{% endif %}
{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}"""
# What DeepSeek-R1 does: answers without their thoughts, an answer that begins with one.
R1 = DEFAULT_PROMPT + "{% set ns = namespace(tool=false, system='', begins=true) %}" + JOIN_SYSTEM + """
{%- for m in messages -%}
  {%- if m['role'] == 'user' -%}{%- set ns.tool = false -%}{{ '<user>' + m['content'] }}{%- endif -%}
  {%- if m['role'] == 'assistant' and m['tool_calls'] -%}
    {%- for t in m['tool_calls'] -%}{{ '<call>' + t['type'] + t['function'] | tojson }}{%- endfor -%}
  {%- endif -%}
  {%- if m['role'] == 'assistant' and m['content'] is not none -%}
    {%- set content = m['content'] -%}
    {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
    {{ '<assistant>' + content + '<eos>' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.tool -%}{{ '<assistant><think>\\n' }}{%- endif %}
"""
# DeepSeek-V3.1: who speaks is written once, and an answer without a thought says so.
V31 = """{% if not thinking is defined %}{% if enable_thinking is defined %}{% set thinking = enable_thinking %}
  {%- else %}{% set thinking = false %}{% endif %}{% endif %}
{%- set ns = namespace(user=false, system='', begins=true) %}""" + JOIN_SYSTEM + """
{%- for m in messages %}
  {%- if m['role'] == 'user' %}{% set ns.user = true %}{{- '<user>' + m['content'] }}{%- endif %}
  {%- if m['role'] == 'assistant' and (m['tool_calls'] is not defined or m['tool_calls'] is none) %}
    {%- if ns.user %}{{- '<assistant>' }}
      {%- if m['prefix'] is defined and m['prefix'] and thinking %}{{- '<think>' }}{% else %}{{- '</think>' }}{% endif %}
    {%- endif %}
    {%- set ns.user = false %}
    {%- set content = m['content'] %}
    {%- if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}
    {{- content + '<eos>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.user %}{{- '<assistant>' }}{{ '<think>' if thinking else '</think>' }}{%- endif %}"""
# Kimi-K2: a system text of its own where there is none; content that may be a list.
K2 = """{%- for m in messages -%}
  {%- if loop.first and messages[0]['role'] != 'system' -%}
    {{ '<system>You are helpful.<end>' }}
  {%- endif -%}
  {{ '<' + m['role'] + '>' }}
  {%- if m['content'] is string -%}{{- m['content'] + '<end>' -}}
  {%- else -%}{%- for part in m['content'] -%}{{ part['text'] if 'text' in part else '<image>' }}{%- endfor -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<assistant>' }}
{%- endif -%}
"""
# Kimi-K2-Thinking: macros, a search from the end, two slices.
K2_THINKING = """{%- macro content_of(m) -%}
    {%- set c = m.get('content') -%}
    {%- if c is string -%}
      {{ c }}
    {%- elif c is not none -%}
      {% for part in c -%}{{ part['text'] }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}

{% macro name(m, end='>') -%}
  {%- set role = m.get('name') or m['role'] -%}
  <{{ role }}{{ end }}
{%- endmacro -%}

{# the last answer #}
{%- set ns = namespace(last=-1) -%}
{%- for i in range(messages|length - 1, -1, -1) -%}
    {%- if messages[i]['role'] == 'assistant' and not messages[i].get('tool_calls') -%}
        {%- set ns.last = i -%}
        {%- break -%}
    {%- endif -%}
{%- endfor -%}
{%- if tools -%}
  <tools>{{ tools | tojson(separators=(',', ':')) }}<end>
{%- endif -%}
{%- if messages|length == 0 or messages[0]['role'] != 'system' -%}
  <system>You are helpful.<end>
{%- endif -%}

{%- for m in messages[:ns.last+1] -%}
  {{ name(m) }}
  {%- if m['role'] == 'assistant' -%}<think></think>{%- endif -%}
  {{ content_of(m) }}<end>
{%- endfor -%}
{%- for m in messages[ns.last+1:] -%}
  {{ name(m, end='|') }}
  {%- if m['role'] == 'assistant' -%}<think>{{ m.get('reasoning_content', '') }}</think>{%- endif -%}
  {{ content_of(m) }}<end>
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
"""
# GLM: text outside the tags, thoughts of the last answer only.
GLM = """[mask]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<user>
{{ visible(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<assistant>
{%- set thought = '' %}
{%- set content = visible(m.content) %}
{%- if '</think>' in content %}
    {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user and thought -%}
{{ '\\n<think>' + thought.strip() +  '</think>'}}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{%- elif m.role == 'system' -%}
<system>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <assistant>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""
FAMILIES = [R1, V31, K2, K2_THINKING, GLM]
# What the families and the random ones leave out.
OTHERS = [
    "{{ 'aB'|upper ~ 'aB'.lower() ~ ('-' * 3) ~ 7 // -2 ~ 7 % -2 ~ -7 // 2 ~ 5 // -1 ~ 5 % -1 }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}:{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if not loop.last }} {% endfor %}",
    "{% for k, v in dict(a=1, b='c').items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.keys()|join }}{{ {'a': 1}.values()|first }}",
    "{{ messages|length is even }}{{ 3 is odd }}{{ 'a' is in 'abc' }}{{ 4 is eq(4) }}{{ 4 is ne 4 }}{{ none is not none }}",
    "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' x '.lstrip() }}|{{ ' x '|trim }}|{{ 'a,b,,c'.split(',', maxsplit=1)[1] }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}in {{ a }}{% set a = 3 %}{% endset %}{{ c }}{{ a }}{# {{ no }} #}{{ '{# no #}' }}",
    "{% macro f(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f('A') }}{{ f(b=1, a=2) }}{{ f(1, 2, c=3) }}{{ f() }}",
    "{% for i in range(2) %}{% if x is defined %}again{% endif %}{% set x = i %}{{ x }}{% endfor %}{{ x is defined }}"
    "{{ range is defined }}{{ strftime_now is callable }}{{ messages.0.role }}{{ 'abc'[-2] }}{{ 'abc'[5] is defined }}",
    "{{ '\u00e9\u3000a\u00e9'.strip('\u00e9') }}|{{ '\u00e9a\u00e9'|last }}{{ '\u00e9a'|length }}{{ '\u00e9a\u00e9'[1:] }}{{ 'abc'[:-1] }}",
    "{% set x %}{% endset %}{{ '' in x }}{{ x.split('a')|length }}{{ ''|default(boolean=true) }}|{{ 'a'|default(boolean=true) }}",
    "{% for i in [] %}{% else %}{% set k = 1 %}{{ k }}{% endfor %}[{{ k }}]{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}"
    "{% for i in [1, 2] %}{{ i }}{% for j in [] %}{% else %}{% break %}{% endfor %}{% endfor %}{% set (a, b) = 3, 4 %}{{ a }}{{ b }}",
    "{{ undef }}{{ undef|length }}{{ undef|default('d') }}{{ ''|default('e', true) }}{{ undef is defined }}{{ undef or 'o' }}",
    "{{ raise_exception('no') if false }}{{ nothing.here if false }}{{ 'x'|nofilter if false }}ok",
    "{% if messages[0].content is string and not (messages[0]['role'] == 'tool') -%} a {%- elif 1 -%} b {%- endif -%} c",
    "{%- for m in messages if m.role != 'system' -%}{{ m.role[0] }}{{ m.role[1:3] }}{{ m.role[::-1] }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% for x in [1] %}{{ loop.depth }}{{ loop.depth0 }}{{ loop is mapping }}"
    "{{ loop == loop }}{{ 'x' if loop }}{{ loop['index'] }}{{ loop.none is defined }}{% endfor %}{% endfor %}",
    "{{ (1, 'a') == [1, 'a'] }}{{ (1, 2) == (1, 2) }}{{ () == [] }}{{ range(2) == [0, 1] }}"
    "{{ range(2)|list == [0, 1] }}{{ [1] in [(1,)] }}",
    "{% set d = {'a': 1} %}{{ d.keys()[0] }}{{ d.items() is sequence }}{{ d.items()|first is sequence }}"
    "{{ d.keys()|list == ['a'] }}{{ d.items()|list == [('a', 1)] }}{{ d.values()|last }}{{ (1, 2)[1:] == (2,) }}{{ ((1,) + (2,))[1] }}",
    "{{ ([1] + (2,))|length }}", "{{ ({}.keys() + [1])|length }}", "{{ {'a': 1}.items()[:1] is defined }}", "{{ (range(2) + range(2))|length }}",
    "{% set d = {'items': 1, 'keys': 2} %}{{ d['items'] }}{{ d.items()|length }}{{ d.title is defined }}{{ namespace(get=3).get }}"
    "{{ messages.copies is defined }}{{ messages.append is defined }}",
    "{{ +true }}{{ -true }}{{ +3 - -2 }}{{ 'a' is in {'a': 1} }}{{ nothing is callable }}{{ 1 if x is undefined else 2 }}", "{{ +'a' }}",
    "{{ 1 is defined if 1 }}", "{{ 1 is defined is true }}",
    "{{ strftime_now('%%z ' * 90) }}{{ strftime_now('') }}{{ strftime_now('%Y')|length }}",
    "a {#-#} b{#+#}\n c {#--#} d {#-+#}\n{##} e",
    "{{ \"it's\" 'so' }}{{ '\\t\\\\\\'\\u00e9\\x41\\q' }}",
]


class Generation(Extension):
    """{% generation %}, which marks what a model has written."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    @staticmethod
    def same(caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def refuse(why):
        raise TemplateError(why)

    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


class Random:
    """Templates that nobody would write, of everything that these may say."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def value(self):
        return self.r.choice(["'a'", "'ab'", "''", "'role'", "'\u00e9'", "' b '", "'\\n'", "\"'q'\"", "'a' 'b'", "'\\u3000x'",
                              "'\\x41\\q'", "0", "1", "5", "true", "none", "x", "y", "nothing", "bos_token", "messages[0].role",
                              "messages[-1].content", "m['role']", "m.content", "ns.v", "loop.index0", "loop.last"])

    def container(self):
        return self.r.choice(["[1, 'a']", "{'a': 1}", "(1,)", "range(3)", "range(3, -3, -2)", "[x, 'q']", "()"])

    def expression(self, depth=0):
        if depth > 2 or self.r.random() < 0.35:
            return self.value()
        a, b, c = (self.expression(depth + 1) for _ in range(3))
        sign = self.r.choice(["+", "-", "~", "*", "//", "==", "!=", "<", ">=", "in", "not in", "and", "or"])
        test = self.r.choice(["defined", "none", "string", "mapping", "iterable", "sequence", "number", "true", "odd",
                              "eq 1", "in [1, 'a']", "equalto('a')"])
        held = self.r.choice(["|length", "|first", "|last", "|join('-')", "|list|length", "[1]", "[-1]", "[1:]|length", "['a']",
                              " is sequence", " is mapping", " is iterable", "|first is defined"])
        call = self.r.choice(["|trim", "|length", "|string", "|first", "|last", "|default(1)", "|d(2, true)", "|join(',')",
                              "|replace('a', 'bb')", ".strip()", ".lstrip('a')", ".rstrip()", ".split('a')[-1]",
                              ".split('a', 1)[0]", ".startswith('a')", ".endswith('b')", ".replace('b', '')", ".get('a', 3)",
                              ".items()|length", "[1]", "[-1]", "[0]", "[1:]", "[:-1]", "[::-1]", "[-1:0:-2]", ".role"])
        return self.r.choice([f"{a} {sign} {b}", f"{a} {sign} {b}", f"({a}){call}", f"({a}){call}", f"not {a}", f"-{a}", f"({a})",
                              f"({self.container()}){held}", f"{self.r.randint(-9, 9)} % ({a})", f"({a} in {self.container()})", f"{a} if {b} else {c}", f"{a} is {test}", f"{a} is not {test}", f"{a} < {b} <= {c}",
                              f"mac({a})", f"mac(b={a})"])

    def tag(self, inside):
        return self.r.choice(["{%", "{%", "{%-", "{%+"]) + f" {inside} " + self.r.choice(["%}", "%}", "-%}", "+%}"])

    def blanks(self):
        return self.r.choice(["", " ", "\n", "\n  ", " \n", "x", "\r\n", "\t", "\u00e9 ", " y ", "\u00a0", "\n\u3000 "])

    def body(self, depth):
        return "".join(self.statement(depth + 1) for _ in range(self.r.randint(0, 2))) + self.blanks()

    def statement(self, depth=0):
        e, t, b = self.expression, self.tag, lambda: self.body(depth)
        if depth > 2 or self.r.random() < 0.3:
            return self.blanks() + self.r.choice(["{{", "{{-"]) + f" {e()} " + self.r.choice(["}}", "-}}"]) + self.blanks()
        return self.blanks() + self.r.choice([
            lambda: t(f"if {e()}") + b() + t("endif"),
            lambda: t(f"if {e()}") + b() + t(f"elif {e()}") + b() + t("else") + b() + t("endif"),
            lambda: t("for m in messages") + b() + t("endfor"),
            lambda: t(f"for x in {self.r.choice([e(), self.container()])}") + b() + t("else") + b() + t("endfor"),
            lambda: t(f"for m in messages if {e()}") + b() + t("endfor"),
            lambda: t("for x, y in {'a': 1, 'b': 2}.items()") + b() + t("endfor"),
            lambda: t("for m in messages") + b() + t(f"if {e()}") + t(self.r.choice(["break", "continue"])) + t("endif") + b()
            + t("endfor"),
            lambda: t(f"set {self.r.choice(['x', 'y', 'ns.v'])} = {e()}"),
            lambda: t(f"set x, y = {e()}, {e()}"),
            lambda: t("set x") + b() + t("endset"),
            lambda: self.r.choice(["{#", "{#-", "{#+"]) + " c " + self.r.choice(["#}", "-#}", "+#}"]) + b(),
            lambda: t("generation") + b() + t("endgeneration"),
        ])()

    def template(self):
        return ("{% set ns = namespace(v='q') %}{% set m = messages[0] %}{% macro mac(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}"
                + "".join(self.statement() for _ in range(self.r.randint(1, 3))))


def render(env, template, talk, bos=BOS, eos=EOS):
    tokens = {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None}
    messages = [{"role": role, "content": content} for role, content in talk]
    try:
        text = env.from_string(template).render(messages=messages, tools=None, documents=None, add_generation_prompt=True,
                                                **tokens)
    except Exception:  # Python's too: None + 1
        text = None
    return {"template": template, "messages": messages, "bos": bos, "eos": eos, "text": text}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--random", type=int, default=250)
    a = ap.parse_args()
    env, made, seen = environment(), Random(a.seed), set()
    cases = [render(env, template, talk) for template in FAMILIES + OTHERS for talk in TALKS]
    cases += [render(env, "{{ raise_exception('roles must alternate') }}", TALKS[1]), render(env, R1, TALKS[0], bos=None), render(env, "{{ 'a' + eos_token }}", TALKS[1], eos=None)]
    while len(seen) < a.random:
        case = render(env, made.template(), TALKS[made.r.randrange(len(TALKS))])
        shown = case["text"] or ""
        if len(shown.strip()) < 8 or len(case["template"]) > 400 or any(c in shown for c in "[({") or shown in seen:
            continue  # little to see, or a list or a map is printed
        seen.add(shown)
        cases.append(case)
    with open(a.out, "w") as f:
        for case in cases:
            f.write(json.dumps(case, ensure_ascii=False) + "\n")
    print(len(cases), "cases,", sum(c["text"] is None for c in cases), "refused")


if __name__ == "__main__":
    main()
