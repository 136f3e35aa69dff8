"""The codes of languages that data.split_sentences may be, known without importing the package that cuts.

sentencex has rules of its own for some thirty languages, those of a related one for most others (its table of fallbacks,
src/languages/fallbacks.rs), and in the end English: a code that is none at all would be cut so without a word.
"""

LANGUAGE_CODE = "^[a-z]{2,3}$"
# ISO 639-1, the codes of two letters.
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st
su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
# Codes of three letters in sentencex's table of fallbacks.
WITH_FALLBACK = """
abs ace ady aeb aln alt ami anp arn arq ary arz ast atj avk awa azb ban bar bbc bcc bgn bjn bpy bqi btm bug bxr cdo
crh csb dsb dtp dty egl eml ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb hyw inh jam jut
kaa kab kbd kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz lzh lzz mad mai mdf mhr
min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnt qug rgn rmy rue rup ruq sah scn sco
sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv udm vec vep vls vmf vot vro wuu xal xmf
zea zgh
"""
LANGUAGES = frozenset((ISO_639_1 + WITH_FALLBACK).split())
