"""How pages look: on phones and desks, in light and dark, and on paper."""

from __future__ import annotations

from .palette import variables_css

#: A table with many columns as a list of its rows.
_LISTED = """.stacked thead{display:none}.stacked table,.stacked tbody,.stacked tr{display:block}
.stacked td{display:flex;justify-content:space-between;gap:14px;padding:1px 0;border:none;white-space:normal}
.stacked td:empty{display:none}.stacked td::before{content:attr(data-name);color:var(--soft);text-align:left;
font-weight:400}.stacked tr{border-bottom:1px solid var(--line);padding:6px 0}.stacked td:first-child{font-weight:600}
"""
STYLE = (
    variables_css()
    + """
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:1180px;margin:0 auto;padding:32px 24px}
h1{font-size:25px;line-height:1.25;font-weight:650;margin:0 0 14px}
h2{font-size:18px;line-height:1.3;font-weight:600;margin:0 0 10px}h3{font-size:15px;font-weight:600;margin:18px 0 4px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin:18px 0}
p{margin:8px 0}ul{padding-left:20px;margin:8px 0}li{margin:2px 0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 18px;margin:0}dt{color:var(--soft)}dd{margin:0}
.wide{overflow-x:auto;max-width:100%;margin:8px 0}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500;vertical-align:bottom}th:first-child,td:first-child,.text{text-align:left}
tr.marked td{font-weight:650}
.stacked th,.stacked .long{white-space:normal}.stacked th,.stacked td{padding-right:10px}
pre{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto;
font-size:13px;line-height:1.45}
summary{cursor:pointer;color:var(--soft);margin-top:8px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:18px 28px;margin:10px 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:0 28px;align-items:end}
.charts .panels{grid-template-columns:minmax(0,1fr)}
figure{margin:0;max-width:480px;min-width:0;overflow-x:auto}figcaption{font-weight:600;font-size:14px;margin:0 0 4px}
figure svg{display:block;width:100%;min-width:326px;height:auto;stroke-linejoin:round;stroke-linecap:butt;
font-family:"DejaVu Sans",Verdana,sans-serif}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--soft);margin:6px 0 10px;font-size:14px}
.swatch{margin-right:6px;vertical-align:-1px}
.group{font-weight:600;font-size:14px;margin:10px 0 2px}
.lanes{display:grid;grid-template-columns:62px minmax(0,1fr);column-gap:10px;color:var(--soft);font-size:12px;
line-height:18px;text-align:right;padding-right:14px}.lanes span{display:block;height:18px}
.lanes svg{width:100%;overflow:visible}.lanes text{fill:var(--soft);font:12px system-ui,sans-serif}
.lanes line{stroke:var(--line)}
footer{color:var(--soft);margin-top:24px;font-size:13px}footer pre{white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:600px){main{padding:16px 12px}section{padding:14px 13px;margin:12px 0}h1{font-size:20px}
dl{display:block}dt{font-size:13px;margin-top:6px}.lanes{grid-template-columns:56px minmax(0,1fr)}}
@media(max-width:400px){main{padding:10px 6px}section{padding:12px 10px}
.charts,.panels{grid-template-columns:minmax(0,1fr)}}
@media print{@page{margin:14mm}body{background:none;font-size:10.5pt}main{max-width:none;padding:0}
section{border:none;border-radius:0;padding:0;margin:0 0 8mm;break-before:page}
h2,h3,.group,figcaption{break-after:avoid}
section:first-of-type{break-before:auto}
figure,.lanes,tr,pre,li,dl{break-inside:avoid}.panels,.charts{grid-template-columns:1fr 1fr}.legend{break-after:avoid}
.charts .panels{grid-template-columns:1fr}
.wide{overflow:visible}table{font-size:8.5pt}th,td,.long{white-space:normal}th,td{padding-right:6px}
.stacked tbody{columns:2;column-gap:10mm}
dl{margin-bottom:6mm}thead{display:table-header-group}
pre{white-space:pre-wrap;border:1px solid var(--line);background:none}summary{list-style:none;color:var(--ink)}
details::details-content{content-visibility:visible;block-size:auto;display:block}
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
    + f"@media print,(max-width:600px){{{_LISTED}}}\n"
)
