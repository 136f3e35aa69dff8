"""Lists link prefixes (the part before the colon): namespaces, language codes and sister projects.

The <siteinfo> of a dump lists its namespaces. The lists here are for dumps without <siteinfo>, and also
contain older names that <siteinfo> lacks (German "Bild" for "Datei").
"""

# ruff: noqa: SIM905 (word lists read best as words; letters that look alike are meant)

from collections.abc import Mapping

# Keys of three namespaces in <siteinfo>.
MEDIA, FILE, CATEGORY = -2, 6, 14

FILE_NAMES = """
file image media datei bild fichier archivo imagen fitxer imatge immagine ficheiro imagem arquivo bestand
afbeelding plik grafika файл изображение картинка зображення выява soubor obrázok súbor slika датотека слика
fájl kép fișier fişier imagine αρχείο εικόνα dosya resim fil billede bilde tiedosto kuva fail pilt attēls
vaizdas skrá mynd fitxategi irudi ficheru imaxen restr comhad íomhá delwedd tệp tin hình tập_tin ไฟล์ ภาพ ملف
صورة پرونده تصویر فائل קובץ תמונה चित्र चित्र_दालन चित्र ছবি চিত্র படிமம் దస్త్రం ಚಿತ್ರ പ്രമാണം ගොනුව ფაილი სურათი
պատկեր 文件 图像 圖像 檔案 档案 ファイル 画像 파일 그림 berkas gambar fail wêne faila сүрәт рәсем файл сурет
fișier skeda figura dosiero fichièr imache imaxe picha mặt_hình медия медіа медиа medium medien média mídia
multimedia ficheiru файл فایل fayl şəkil fasciculus imago
""".split()

CATEGORY_NAMES = """
category kategorie catégorie categoría categoria categorie kategoria категория категорія катэгорыя kategória
kategorija категорија κατηγορία kategori luokka kategooria kategorio flokkur kategoriija thể_loại หมวดหมู่ تصنيف
رده زمرہ קטגוריה श्रेणी वर्ग বিষয়শ্রেণী வகைப்பு பகுப்பு వర్గం ವರ್ಗ വർഗ്ഗം ප්රවර්ගය კატეგორია կատեգորիա 分类 分類
カテゴリ 분류 санат төркем категори catigurìa categorîa rummad catagóir rumuiad categori rannóg rumm catègorie
kateqoriya turkum jamii bólkur ангилал catiguría
""".split()

# Codes of Wikipedias in links between languages.
LANGUAGES = """
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar
bat-smg bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo
ce ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es
et eu ext fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu
guc gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja
jam jbo jv ka kaa kab kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb
lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw
mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup
nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup
roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy si simple sk skr sl sm smn sn so
sq sr srn ss st stq su sv sw szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to tpi tr trv ts tt tum
tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zgh zh
zh-classical zh-min-nan zh-tw zh-cn zh-yue zu
""".split()

# Links to these projects are part of a sentence. Without a label, the page's name is shown, not the prefix.
SISTERS = frozenset(
    """
w wikipedia wikt wiktionary b wikibooks q wikiquote s wikisource n wikinews v wikiversity voy wikivoyage
species wikispecies c commons d wikidata m meta mw mediawikiwiki foundation incubator phab bugzilla special
""".split()
)

FILE_ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".svg", ".gif", ".tif", ".tiff", ".webp", ".xcf", ".pdf", ".djvu"),
    *(".ogg", ".oga", ".ogv", ".webm", ".mp3", ".mid", ".wav", ".flac", ".opus", ".stl"),
)


def normalized(prefix: str) -> str:
    """Return a prefix in the form used for comparison: in lower case, with spaces instead of underscores."""
    return " ".join(prefix.replace("_", " ").split()).casefold()


_BUILT_IN = frozenset(map(normalized, (*FILE_NAMES, *CATEGORY_NAMES, *LANGUAGES)))


def invisible_prefixes(namespaces: Mapping[int, str]) -> frozenset[str]:
    """Return the prefixes of links that show no text in the article.

    `namespaces` holds the namespaces in <siteinfo>, as {key: name}.
    """
    named = (namespaces[key] for key in (MEDIA, FILE, CATEGORY) if namespaces.get(key))
    return _BUILT_IN | frozenset(map(normalized, named))
