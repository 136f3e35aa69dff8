"""Templates of the Cebuano Wikipedia: a subset of the English ones. A program wrote most of its articles."""

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
