"""The HTML page of a picture, which needs nothing from elsewhere: pan, zoom, and the way of a value on hover."""

from __future__ import annotations

from html import escape
from pathlib import Path

_STYLE = """
.shardwright{position:relative;overflow:hidden;background:#fff;font:13px "DejaVu Sans",Verdana,sans-serif}
.shardwright svg{width:100%;height:100%;display:block;cursor:grab;user-select:none}
.shardwright svg.moving{cursor:grabbing}
.shardwright .node,.shardwright .edge{transition:opacity .12s}
.shardwright .node{cursor:pointer}
.shardwright .chosen .node:not(.on),.shardwright .chosen .edge:not(.on){opacity:.13}
.shardwright .edge.on path{stroke-width:2.4}
.shardwright .bar{position:absolute;right:10px;top:10px;display:flex;gap:4px}
.shardwright button{font:inherit;min-width:2em;padding:2px 8px;border:1px solid #cbd2d9;border-radius:4px;
background:#fff;color:#1f2933;cursor:pointer}
.shardwright button:hover{background:#f0f3f6}
"""

_SCRIPT = """
(function(){
var box=document.currentScript.parentElement,svg=box.querySelector('svg');
var base=svg.getAttribute('viewBox').split(/\\s+/).map(Number),view=base.slice(),held=null,drag=null;
svg.removeAttribute('width');svg.removeAttribute('height');
function show(){svg.setAttribute('viewBox',view.join(' '));}
function at(e){var m=svg.getScreenCTM().inverse(),p=svg.createSVGPoint();p.x=e.clientX;p.y=e.clientY;
return p.matrixTransform(m);}
function zoom(f,x,y){var w=view[2]*f;if(w>base[2]*4||w<base[2]/200)return;
view=[x-(x-view[0])*f,y-(y-view[1])*f,w,view[3]*f];show();}
function fit(){view=base.slice();show();}
svg.addEventListener('wheel',function(e){e.preventDefault();var p=at(e);zoom(Math.exp(e.deltaY*0.0015),p.x,p.y);},
{passive:false});
svg.addEventListener('pointerdown',function(e){drag={p:at(e),x:e.clientX,y:e.clientY,far:false};});
window.addEventListener('pointermove',function(e){if(!drag)return;
if(Math.abs(e.clientX-drag.x)+Math.abs(e.clientY-drag.y)>4){drag.far=true;svg.classList.add('moving');}
if(drag.far){var p=at(e);view[0]+=drag.p.x-p.x;view[1]+=drag.p.y-p.y;show();}});
window.addEventListener('pointerup',function(){svg.classList.remove('moving');setTimeout(function(){drag=null;},0);});
var edges=Array.prototype.slice.call(svg.querySelectorAll('g.edge')),nodes={},into={},out={};
svg.querySelectorAll('g.node').forEach(function(n){nodes[n.id]=n;});
edges.forEach(function(e){var a=e.dataset.from,b=e.dataset.to;
(out[a]=out[a]||[]).push(e);(into[b]=into[b]||[]).push(e);});
function clear(){svg.classList.remove('chosen');
svg.querySelectorAll('.on').forEach(function(g){g.classList.remove('on');});}
function walk(id,links,end,far){var seen={},todo=[id];while(todo.length){var n=todo.pop();if(seen[n])continue;seen[n]=1;
if(nodes[n])nodes[n].classList.add('on');(links[n]||[]).forEach(function(e){e.classList.add('on');
var next=e.dataset[end];if(nodes[next])nodes[next].classList.add('on');if(far)todo.push(next);});}}
function light(g,far){clear();svg.classList.add('chosen');
if(g.classList.contains('edge')){g.classList.add('on');
walk(g.dataset.from,far?into:{},'from',far);walk(g.dataset.to,far?out:{},'to',far);
(out[g.dataset.from]||[]).forEach(function(e){if(e===g||far&&e.dataset.to===g.dataset.to)e.classList.add('on');});}
else{walk(g.id,into,'from',far);walk(g.id,out,'to',far);}}
function target(e){return e.target.closest('g.node,g.edge');}
svg.addEventListener('pointerover',function(e){if(held||drag&&drag.far)return;var g=target(e);
if(g)light(g,false);else clear();});
svg.addEventListener('pointerleave',function(){if(!held)clear();});
svg.addEventListener('click',function(e){if(drag&&drag.far)return;var g=target(e);
if(g&&g!==held){hold(g);light(g,true);}else{hold(null);clear();}});
function hold(g){if(held)held.classList.remove('held');held=g;if(g)g.classList.add('held');}
box.querySelector('.in').onclick=function(){zoom(0.8,view[0]+view[2]/2,view[1]+view[3]/2);};
box.querySelector('.out').onclick=function(){zoom(1.25,view[0]+view[2]/2,view[1]+view[3]/2);};
box.querySelector('.fit').onclick=fit;
function area(g){var b=g.getBBox(),m=svg.getScreenCTM().inverse().multiply(g.getScreenCTM());
var p=svg.createSVGPoint();p.x=b.x;p.y=b.y;p=p.matrixTransform(m);return {x:p.x,y:p.y,w:b.width*m.a,h:b.height*m.d};}
box.shardwright={fit:fit,choose:function(g){hold(g);if(g)light(g,true);else clear();},
centre:function(g){var a=area(g);view[0]=a.x+a.w/2-view[2]/2;view[1]=a.y+a.h/2-view[3]/2;show();},
frame:function(g){var a=area(g),r=svg.clientWidth/svg.clientHeight,w=Math.max(a.w,a.h*r)*1.05;
view=[a.x+a.w/2-w/2,a.y+a.h/2-w/r/2,w,w/r];show();},
open:function(){var scale=Math.min(svg.clientWidth/base[2],svg.clientHeight/base[3]);
if(scale<0.6){var w=svg.clientWidth/0.75;view=[base[0],base[1],w,w*svg.clientHeight/svg.clientWidth];show();}}};
})();
"""

_BAR = (
    '<div class="bar"><button class="in" title="closer">+</button><button class="out" title="farther">−</button>'
    '<button class="fit" title="all of it">fit</button></div>'
)


def fragment(svg: str, height: str = "560px") -> str:
    """A piece of HTML with the picture: wheel and drag move it, hovering shows a node's neighbours, a click its way."""
    return (
        f'<div class="shardwright" style="height:{height}"><style>{_STYLE}</style>{svg}{_BAR}'
        f"<script>{_SCRIPT}</script></div>\n"
    )


def page(svg: str, title: str = "Shardwright", opened: str | None = None) -> str:
    """A whole page with the picture: beside it a search, its functions, its collectives by bytes or time, and what
    stands behind the node at the pointer. `opened` is the same picture with every fold open, to change over to."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    pictures = "".join(fragment(one, "100vh").rstrip() for one in (svg, opened) if one is not None)
    return template.replace("TITLE", escape(title), 1).replace("PICTURE", pictures, 1)
