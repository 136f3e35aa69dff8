"""Lists names of languages in several languages, from Unicode's CLDR, for templates such as {{lang-de}}."""

# ruff: noqa: E501 (one line per language)

COLUMNS = ("en", "de", "fr", "sv", "nl", "es", "ja", "zh")
TABLE = """
af | Afrikaans | Afrikaans | afrikaans | afrikaans | Afrikaans | afrikáans | アフリカーンス語 | 南非荷兰语
am | Amharic | Amharisch | amharique | amhariska | Amhaars | amárico | アムハラ語 | 阿姆哈拉语
ang | Old English | Altenglisch | ancien anglais | fornengelska | Oudengels | inglés antiguo | 古英語 | 古英语
ar | Arabic | Arabisch | arabe | arabiska | Arabisch | árabe | アラビア語 | 阿拉伯语
arc | Aramaic | Aramäisch | araméen | arameiska | Aramees | arameo | アラム語 | 阿拉米语
az | Azerbaijani | Aserbaidschanisch | azerbaïdjanais | azerbajdzjanska | Azerbeidzjaans | azerbaiyano | アゼルバイジャン語 | 阿塞拜疆语
be | Belarusian | Belarussisch | biélorusse | vitryska | Belarussisch | bielorruso | ベラルーシ語 | 白俄罗斯语
bg | Bulgarian | Bulgarisch | bulgare | bulgariska | Bulgaars | búlgaro | ブルガリア語 | 保加利亚语
bn | Bengali | Bengalisch | bengali | bengali | Bengaals | bengalí | ベンガル語 | 孟加拉语
bo | Tibetan | Tibetisch | tibétain | tibetanska | Tibetaans | tibetano | チベット語 | 藏语
br | Breton | Bretonisch | breton | bretonska | Bretons | bretón | ブルトン語 | 布列塔尼语
bs | Bosnian | Bosnisch | bosniaque | bosniska | Bosnisch | bosnio | ボスニア語 | 波斯尼亚语
ca | Catalan | Katalanisch | catalan | katalanska | Catalaans | catalán | カタルーニャ語 | 加泰罗尼亚语
co | Corsican | Korsisch | corse | korsikanska | Corsicaans | corso | コルシカ語 | 科西嘉语
cop | Coptic | Koptisch | copte | koptiska | Koptisch | copto | コプト語 | 科普特语
cs | Czech | Tschechisch | tchèque | tjeckiska | Tsjechisch | checo | チェコ語 | 捷克语
cy | Welsh | Walisisch | gallois | walesiska | Welsh | galés | ウェールズ語 | 威尔士语
da | Danish | Dänisch | danois | danska | Deens | danés | デンマーク語 | 丹麦语
de | German | Deutsch | allemand | tyska | Duits | alemán | ドイツ語 | 德语
el | Greek | Griechisch | grec | grekiska | Grieks | griego | ギリシャ語 | 希腊语
en | English | Englisch | anglais | engelska | Engels | inglés | 英語 | 英语
eo | Esperanto | Esperanto | espéranto | esperanto | Esperanto | esperanto | エスペラント語 | 世界语
es | Spanish | Spanisch | espagnol | spanska | Spaans | español | スペイン語 | 西班牙语
et | Estonian | Estnisch | estonien | estniska | Estisch | estonio | エストニア語 | 爱沙尼亚语
eu | Basque | Baskisch | basque | baskiska | Baskisch | euskera | バスク語 | 巴斯克语
fa | Persian | Persisch | persan | persiska | Perzisch | persa | ペルシア語 | 波斯语
fi | Finnish | Finnisch | finnois | finska | Fins | finés | フィンランド語 | 芬兰语
fr | French | Französisch | français | franska | Frans | francés | フランス語 | 法语
fy | Western Frisian | Westfriesisch | frison occidental | västfrisiska | Fries | frisón occidental | 西フリジア語 | 西弗里西亚语
ga | Irish | Irisch | irlandais | iriska | Iers | irlandés | アイルランド語 | 爱尔兰语
gd | Scottish Gaelic | Gälisch (Schottland) | gaélique écossais | skotsk gäliska | Schots-Gaelisch | gaélico escocés | スコットランド・ゲール語 | 苏格兰盖尔语
gl | Galician | Galicisch | galicien | galiciska | Galicisch | gallego | ガリシア語 | 加利西亚语
grc | Ancient Greek | Altgriechisch | grec ancien | forngrekiska | Oudgrieks | griego antiguo | 古代ギリシャ語 | 古希腊语
gu | Gujarati | Gujarati | goudjarati | gujarati | Gujarati | guyaratí | グジャラート語 | 古吉拉特语
haw | Hawaiian | Hawaiisch | hawaïen | hawaiiska | Hawaïaans | hawaiano | ハワイ語 | 夏威夷语
he | Hebrew | Hebräisch | hébreu | hebreiska | Hebreeuws | hebreo | ヘブライ語 | 希伯来语
hi | Hindi | Hindi | hindi | hindi | Hindi | hindi | ヒンディー語 | 印地语
hr | Croatian | Kroatisch | croate | kroatiska | Kroatisch | croata | クロアチア語 | 克罗地亚语
hu | Hungarian | Ungarisch | hongrois | ungerska | Hongaars | húngaro | ハンガリー語 | 匈牙利语
hy | Armenian | Armenisch | arménien | armeniska | Armeens | armenio | アルメニア語 | 亚美尼亚语
id | Indonesian | Indonesisch | indonésien | indonesiska | Indonesisch | indonesio | インドネシア語 | 印度尼西亚语
is | Icelandic | Isländisch | islandais | isländska | IJslands | islandés | アイスランド語 | 冰岛语
it | Italian | Italienisch | italien | italienska | Italiaans | italiano | イタリア語 | 意大利语
ja | Japanese | Japanisch | japonais | japanska | Japans | japonés | 日本語 | 日语
ka | Georgian | Georgisch | géorgien | georgiska | Georgisch | georgiano | ジョージア語 | 格鲁吉亚语
kk | Kazakh | Kasachisch | kazakh | kazakiska | Kazachs | kazajo | カザフ語 | 哈萨克语
km | Khmer | Khmer | khmer | kambodjanska | Khmer | jemer | クメール語 | 高棉语
ko | Korean | Koreanisch | coréen | koreanska | Koreaans | coreano | 韓国語 | 韩语
ku | Kurdish | Kurdisch | kurde | kurdiska | Koerdisch | kurdo | クルド語 | 库尔德语
ky | Kyrgyz | Kirgisisch | kirghize | kirgiziska | Kirgizisch | kirguís | キルギス語 | 柯尔克孜语
la | Latin | Latein | latin | latin | Latijn | latín | ラテン語 | 拉丁语
lb | Luxembourgish | Luxemburgisch | luxembourgeois | luxemburgiska | Luxemburgs | luxemburgués | ルクセンブルク語 | 卢森堡语
lo | Lao | Laotisch | lao | laotiska | Laotiaans | lao | ラオ語 | 老挝语
lt | Lithuanian | Litauisch | lituanien | litauiska | Litouws | lituano | リトアニア語 | 立陶宛语
lv | Latvian | Lettisch | letton | lettiska | Lets | letón | ラトビア語 | 拉脱维亚语
mi | Māori | Māori | maori | maori | Maori | maorí | マオリ語 | 毛利语
mk | Macedonian | Mazedonisch | macédonien | makedonska | Macedonisch | macedonio | マケドニア語 | 马其顿语
ml | Malayalam | Malayalam | malayalam | malayalam | Malayalam | malayálam | マラヤーラム語 | 马拉雅拉姆语
mn | Mongolian | Mongolisch | mongol | mongoliska | Mongools | mongol | モンゴル語 | 蒙古语
mr | Marathi | Marathi | marathi | marathi | Marathi | maratí | マラーティー語 | 马拉地语
ms | Malay | Malaiisch | malais | malajiska | Maleis | malayo | マレー語 | 马来语
mt | Maltese | Maltesisch | maltais | maltesiska | Maltees | maltés | マルタ語 | 马耳他语
my | Burmese | Birmanisch | birman | burmesiska | Birmaans | birmano | ミャンマー語 | 缅甸语
ne | Nepali | Nepalesisch | népalais | nepalesiska | Nepalees | nepalí | ネパール語 | 尼泊尔语
nl | Dutch | Niederländisch | néerlandais | nederländska | Nederlands | neerlandés | オランダ語 | 荷兰语
nb | Norwegian Bokmål | Norwegisch (Bokmål) | norvégien bokmål | norskt bokmål | Noors - Bokmål | noruego bokmal | ノルウェー語(ブークモール) | 书面挪威语
nn | Norwegian Nynorsk | Norwegisch (Nynorsk) | norvégien nynorsk | nynorska | Noors - Nynorsk | noruego nynorsk | ノルウェー語(ニーノシュク) | 挪威尼诺斯克语
no | Norwegian | Norwegisch | norvégien | norska | Noors | noruego | ノルウェー語 | 挪威语
non | Old Norse | Altnordisch | vieux norrois | fornnordiska | Oudnoors | nórdico antiguo | 古ノルド語 | 古诺尔斯语
oc | Occitan | Okzitanisch | occitan | occitanska | Occitaans | occitano | オック語 | 奥克语
pa | Punjabi | Punjabi | pendjabi | punjabi | Punjabi | punyabí | パンジャブ語 | 旁遮普语
pl | Polish | Polnisch | polonais | polska | Pools | polaco | ポーランド語 | 波兰语
pt | Portuguese | Portugiesisch | portugais | portugisiska | Portugees | portugués | ポルトガル語 | 葡萄牙语
qu | Quechua | Quechua | quechua | quechua | Quechua | quechua | ケチュア語 | 克丘亚语
ro | Romanian | Rumänisch | roumain | rumänska | Roemeens | rumano | ルーマニア語 | 罗马尼亚语
ru | Russian | Russisch | russe | ryska | Russisch | ruso | ロシア語 | 俄语
sa | Sanskrit | Sanskrit | sanskrit | sanskrit | Sanskriet | sánscrito | サンスクリット語 | 梵语
sh | Serbo-Croatian | Serbo-Kroatisch | serbo-croate | serbokroatiska | Servo-Kroatisch | serbocroata | セルボ・クロアチア語 | 塞尔维亚-克罗地亚语
si | Sinhala | Singhalesisch | cingalais | singalesiska | Singalees | cingalés | シンハラ語 | 僧伽罗语
sk | Slovak | Slowakisch | slovaque | slovakiska | Slowaaks | eslovaco | スロバキア語 | 斯洛伐克语
sl | Slovenian | Slowenisch | slovène | slovenska | Sloveens | esloveno | スロベニア語 | 斯洛文尼亚语
so | Somali | Somali | somali | somaliska | Somalisch | somalí | ソマリ語 | 索马里语
sq | Albanian | Albanisch | albanais | albanska | Albanees | albanés | アルバニア語 | 阿尔巴尼亚语
sr | Serbian | Serbisch | serbe | serbiska | Servisch | serbio | セルビア語 | 塞尔维亚语
sv | Swedish | Schwedisch | suédois | svenska | Zweeds | sueco | スウェーデン語 | 瑞典语
sw | Swahili | Suaheli | swahili | swahili | Swahili | suajili | スワヒリ語 | 斯瓦希里语
syc | Classical Syriac | Altsyrisch | syriaque classique | klassisk syriska | Klassiek Syrisch | siríaco clásico | 古典シリア語 | 古典叙利亚语
ta | Tamil | Tamil | tamoul | tamil | Tamil | tamil | タミル語 | 泰米尔语
te | Telugu | Telugu | télougou | telugu | Telugu | telugu | テルグ語 | 泰卢固语
th | Thai | Thailändisch | thaï | thailändska | Thai | tailandés | タイ語 | 泰语
tl | Tagalog | Tagalog | tagalog | tagalog | Tagalog | tagalo | タガログ語 | 他加禄语
tr | Turkish | Türkisch | turc | turkiska | Turks | turco | トルコ語 | 土耳其语
uk | Ukrainian | Ukrainisch | ukrainien | ukrainska | Oekraïens | ucraniano | ウクライナ語 | 乌克兰语
ur | Urdu | Urdu | ourdou | urdu | Urdu | urdu | ウルドゥー語 | 乌尔都语
uz | Uzbek | Usbekisch | ouzbek | uzbekiska | Oezbeeks | uzbeko | ウズベク語 | 乌兹别克语
vi | Vietnamese | Vietnamesisch | vietnamien | vietnamesiska | Vietnamees | vietnamita | ベトナム語 | 越南语
yi | Yiddish | Jiddisch | yiddish | jiddisch | Jiddisch | yidis | イディッシュ語 | 意第绪语
yue | Cantonese | Kantonesisch | cantonais | kantonesiska | Kantonees | cantonés | 広東語 | 粤语
zh | Chinese | Chinesisch | chinois | kinesiska | Chinees | chino | 中国語 | 中文
"""
NAMES: dict[str, dict[str, str]] = {
    code: dict(zip(COLUMNS, names, strict=True))
    for code, *names in (line.split(" | ") for line in TABLE.strip().split("\n"))
}


def language_name(code: str, language: str) -> str | None:
    """Return the name of the language `code` (de, de-AT), written in `language`; None if it is unknown."""
    return NAMES.get(code.lower().partition("-")[0], {}).get(language)
