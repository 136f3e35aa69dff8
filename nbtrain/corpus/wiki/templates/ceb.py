"""Templates of the Cebuano Wikipedia: some of the English one. Most of its articles are made by a program."""

from nbtrain.corpus.wiki.templates import en
from nbtrain.corpus.wiki.templates.call import Rule, names

SHARED = (
    "age|percentage|rnd|nts|e|10^|sort|sortname|ipac-en|ipaslink|ipablink|angbr|respell|nihongo|us$|€|£|¥|php|₱"
    "|prime|ubl|hlist|music|sqrt|abs|ce|u+"
)
RULES: dict[str, Rule] = {name: en.RULES[name] for name in names(SHARED)}
UNSEEN = en.UNSEEN
UNSEEN_BEGINNINGS: tuple[str, ...] = en.UNSEEN_BEGINNINGS
UNSEEN_ENDINGS: tuple[str, ...] = en.UNSEEN_ENDINGS
