"""The style sheet of the page: one column, readable from 320 px on, light and dark, and on paper."""

from __future__ import annotations

from jouletune.report import ink

_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,'Segoe UI',Helvetica,Arial,sans-serif;
overflow-wrap:break-word}
main,header,footer{max-width:60rem;margin:0 auto;padding:0 1rem}
header{padding-top:2rem}
h1{font-size:clamp(1.7rem,5vw,2.6rem);line-height:1.15;margin:.2rem 0 .8rem;letter-spacing:-.02em}
h2{font-size:1.3rem;margin:3rem 0 .5rem;padding-top:.8rem;border-top:1px solid var(--line)}
p{margin:.5rem 0;max-width:46rem}
.kicker{color:var(--muted);font-size:.9rem;margin:0}
.lead{font-size:1.08rem;max-width:52rem}
.note{border:1px solid var(--line);border-left:.35rem solid var(--bad);background:var(--wash);padding:.7rem 1rem;
max-width:none;margin:1rem 0}
.muted,figcaption,caption,footer{color:var(--muted)}
q{font-style:italic}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.8rem;margin:1.4rem 0;padding:0}
.cards div{background:var(--wash);border-radius:.5rem;padding:.8rem 1rem}
.cards b{display:block;font-size:1.55rem;line-height:1.25;letter-spacing:-.01em}
.cards span.what{display:block;color:var(--muted);font-size:.88rem}
.cards span.more{display:block;font-size:.88rem}
figure{margin:1rem 0;break-inside:avoid}
figcaption{font-size:.9rem;max-width:52rem;margin-top:.4rem}
svg{display:block;width:100%;height:auto}
.maps{display:flex;flex-wrap:wrap;gap:.6rem 1.2rem;margin:1rem 0}
.maps figure{margin:0;flex:0 1 auto;max-width:100%}
.maps figcaption{color:var(--ink);font-weight:600;margin:0 0 .2rem;text-align:center}
.key{display:flex;flex-wrap:wrap;gap:.4rem 1.3rem;list-style:none;margin:.8rem 0;padding:0;font-size:.9rem}
.key li{display:flex;align-items:center;gap:.45rem}
.key i{display:inline-block;flex:none;width:1.15rem;height:1.15rem;background:#7c7b78;position:relative}
.key .measured{outline:2px solid var(--ink);outline-offset:-1px}
.key .predicted{transform:scale(.7)}
.key .slow-predicted{clip-path:polygon(0 0,60% 0,100% 40%,100% 100%,0 100%)}
.key .slow::after{content:"×";position:absolute;right:.1em;top:0;line-height:.8;color:#fff;font-weight:700;
font-style:normal}
.key .reference{outline:3px solid var(--reference);outline-offset:-2px;background:none}
.key .incumbent{outline:3px solid var(--incumbent);outline-offset:-2px;background:none}
.key .winner{outline:3px solid var(--winner);outline-offset:-2px;background:none}
.key .scale{width:7rem;background:linear-gradient(to right,#00224e,#35456c,#666970,#948e77,#c8b866,#fee838)}
.narrow{display:none}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-size:.9rem;padding:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600}
thead th{color:var(--muted);font-weight:500;font-size:.85rem}
.sides th:first-child{font-weight:400;color:var(--muted)}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.3rem 1.2rem;margin:.8rem 0}
dt{color:var(--muted)}
dd{margin:0;min-width:0;overflow-wrap:anywhere}
pre{background:var(--wash);border-radius:.4rem;padding:.8rem 1rem;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:.88rem;margin:.6rem 0}
code,pre{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}
details{margin:1rem 0}
summary{cursor:pointer;font-weight:600}
footer{font-size:.85rem;margin-top:3rem;padding-bottom:2.5rem}
@media (max-width:46rem){
.wide{display:none}.narrow{display:block}
.maps{justify-content:center}
.plain thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.plain,.plain caption,.plain tbody,.plain tr,.plain td,.plain tbody th{display:block}
.plain tr{border-bottom:1px solid var(--line);padding:.5rem 0}
.plain th,.plain td{border:0;padding:.08rem 0}
.plain td{display:grid;grid-template-columns:minmax(6.5rem,38%) 1fr;gap:.8rem}
.plain td::before{content:attr(data-label);color:var(--muted)}
.sides{font-size:.85rem}
.sides th,.sides td{padding-right:.5rem}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.6rem}
}
@media print{
@page{margin:16mm}
body{font-size:10.5pt}
main,header,footer{max-width:none;padding:0}
h2{break-after:avoid}
tr,.cards div,pre{break-inside:avoid}
details::details-content{content-visibility:visible}
.cards div,.note,pre{border:1px solid var(--line)}
}
"""


def sheet() -> str:
    """As it stands in the page. Paper is always light."""
    day, night = ink.variables(0), ink.variables(1)
    themes = f":root{{{day}}}@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    return themes + _RULES.replace("\n", "")
