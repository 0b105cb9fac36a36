// A picture that can be moved, whose values can be followed, and whose folds open where they stand.
(function () {
  const box = document.currentScript.parentElement, svg = box.querySelector('svg'), graph = svg.querySelector('g.graph');
  const whole = svg.getAttribute('viewBox').split(/\s+/).map(Number);
  let base = whole.slice(), view = base.slice(), held = null, drag = null;
  svg.removeAttribute('width');
  svg.removeAttribute('height');

  // ---------------------------------------------------------------- the part in sight

  function show() { svg.setAttribute('viewBox', view.join(' ')); }
  function point(x, y, matrix) { return new DOMPoint(x, y).matrixTransform(matrix); }
  function at(event) { return point(event.clientX, event.clientY, svg.getScreenCTM().inverse()); }
  function zoom(factor, x, y) {
    const width = view[2] * factor;
    if (width > base[2] * 4 || width < base[2] / 200) return;
    view = [x - (x - view[0]) * factor, y - (y - view[1]) * factor, width, view[3] * factor];
    show();
  }
  function fit() { view = base.slice(); show(); }
  svg.addEventListener('wheel', event => {
    event.preventDefault();
    const place = at(event);
    zoom(Math.exp(event.deltaY * 0.0015), place.x, place.y);
  }, { passive: false });
  svg.addEventListener('pointerdown', event => {
    drag = { from: at(event), x: event.clientX, y: event.clientY, far: false };
  });
  window.addEventListener('pointermove', event => {
    if (!drag) return;
    if (Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 4) {
      drag.far = true;
      svg.classList.add('moving');
    }
    if (!drag.far) return;
    const place = at(event);
    view[0] += drag.from.x - place.x;
    view[1] += drag.from.y - place.y;
    show();
  });
  window.addEventListener('pointerup', () => { svg.classList.remove('moving'); setTimeout(() => { drag = null; }, 0); });
  const middle = factor => () => zoom(factor, view[0] + view[2] / 2, view[1] + view[3] / 2);
  box.querySelector('.in').onclick = middle(0.8);
  box.querySelector('.out').onclick = middle(1.25);
  box.querySelector('.fit').onclick = fit;
  function area(group) {
    const found = group.getBBox(), matrix = svg.getScreenCTM().inverse().multiply(group.getScreenCTM());
    const corner = point(found.x, found.y, matrix);
    return { x: corner.x, y: corner.y, w: found.width * matrix.a, h: found.height * matrix.d };
  }

  // ---------------------------------------------------------------- the way of a value

  let nodes, into, out;
  const folds = new Map([...box.querySelectorAll('template')].map(one => [one.dataset.node, one.content.firstElementChild]));
  const opened = new Map();

  // Between an open fold and what it shows there are links without an edge: to where values come in, and from where
  // they go out.
  function read() {
    [nodes, into, out] = [{}, {}, {}];
    const link = (from, to, edge) => {
      (out[from] = out[from] || []).push({ to, edge });
      (into[to] = into[to] || []).push({ to: from, edge });
    };
    svg.querySelectorAll('g.node').forEach(node => { nodes[node.id] = node; });
    svg.querySelectorAll('g.edge').forEach(edge => link(edge.dataset.from, edge.dataset.to, edge));
    for (const [name, inner] of opened) {
      const inside = [...inner.querySelectorAll('g.node')].map(node => node.id);
      const starts = inside.filter(id => !into[id]), ends = inside.filter(id => !out[id]);
      starts.forEach(id => link(name, id, null));
      ends.forEach(id => link(id, name, null));
    }
  }
  function clear() {
    svg.classList.remove('chosen');
    svg.querySelectorAll('.on').forEach(group => group.classList.remove('on'));
  }
  const on = group => { if (group) group.classList.add('on'); };
  function walk(id, links, far) {
    const seen = new Set(), todo = [id];
    while (todo.length) {
      const name = todo.pop();
      if (seen.has(name)) continue;
      seen.add(name);
      on(nodes[name]);
      for (const { to, edge } of (links && links[name]) || []) {
        on(edge);
        on(nodes[to]);
        if (far || !edge) todo.push(to);
      }
    }
  }
  function light(group, far) {
    clear();
    svg.classList.add('chosen');
    if (!group.classList.contains('edge')) {
      walk(group.id, into, far);
      walk(group.id, out, far);
      return;
    }
    on(group);
    const { from, to } = group.dataset;
    walk(from, far ? into : null, far);
    walk(to, far ? out : null, far);
    if (far) (out[from] || []).forEach(one => { if (one.to === to) on(one.edge); });
  }
  const target = event => event.target.closest('g.node,g.edge');
  svg.addEventListener('pointerover', event => {
    if (held || drag && drag.far) return;
    const group = target(event);
    if (group) light(group, false); else clear();
  });
  svg.addEventListener('pointerleave', () => { if (!held) clear(); });
  svg.addEventListener('click', event => {
    if (drag && drag.far) return;
    const group = target(event);
    choose(group && group !== held ? group : null);
  });
  function hold(group) {
    if (held) held.classList.remove('held');
    held = group;
    if (group) group.classList.add('held');
  }
  function choose(group) { hold(group); if (group) light(group, true); else clear(); }

  // ---------------------------------------------------------------- folds

  // A fold that opens takes the room of its node, stretched to what it shows; all else keeps its size and its order to
  // the right and downwards: two things that were apart along an axis are at least as far apart along it.
  const shapes = [];
  function measure() {
    if (shapes.length) return;
    for (const group of graph.querySelectorAll('g.node, g.edge, g.cluster')) {
      const kind = group.classList[0], around = group.getBBox();
      const shape = { group, kind, centre: [around.x + around.width / 2, around.y + around.height / 2], around };
      if (kind !== 'node') {
        shape.lines = [...group.querySelectorAll('path, polyline')].concat(kind === 'cluster' ? [...group.querySelectorAll('polygon')] : [])
          .map(line => ({ line, name: line.hasAttribute('d') ? 'd' : 'points' })).map(one => ({ ...one, text: one.line.getAttribute(one.name) }));
        shape.loose = [...group.querySelectorAll('text, polygon, ellipse')].filter(one => !shape.lines.some(({ line }) => line === one));
        const words = shape.loose.filter(one => one.tagName === 'text').map(one => one.getBBox());
        shape.words = words.length && [
          (Math.min(...words.map(one => one.x)) + Math.max(...words.map(one => one.x + one.width))) / 2,
          (Math.min(...words.map(one => one.y)) + Math.max(...words.map(one => one.y + one.height))) / 2,
        ];
        shape.tips = shape.loose.map(one => { const { x, y, width, height } = one.getBBox(); return [x + width / 2, y + height / 2]; });
      }
      shapes.push(shape);
    }
  }
  function stretch(cuts) {
    const ends = [...new Set(cuts.flatMap(({ from, to }) => [from, to]))].sort((a, b) => a - b), added = [0];
    for (let n = 1; n < ends.length; n++) {
      const over = cuts.filter(({ from, to }) => from <= ends[n - 1] && ends[n] <= to);
      added.push(added[n - 1] + Math.max(0, ...over.map(({ from, to, more }) => more / (to - from))) * (ends[n] - ends[n - 1]));
    }
    return x => {
      const next = ends.findIndex(end => x < end);
      if (next < 0) return x + (added[ends.length - 1] || 0);
      if (next === 0) return x;
      const share = (x - ends[next - 1]) / (ends[next] - ends[next - 1]);
      return x + added[next - 1] + share * (added[next] - added[next - 1]);
    };
  }
  const EDGE = 10, HEAD = 18, ARROW = 14;
  function arrange() {
    const cuts = [[], []], of = new Map(shapes.filter(one => one.kind === 'node').map(one => [one.group.id, one]));
    for (const name of opened.keys()) {
      const { x, y, width, height } = of.get(name).around, [w, h] = folds.get(name).getAttribute('viewBox').split(' ').slice(2).map(Number);
      cuts[0].push({ from: x, to: x + width, more: Math.max(0, w + 2 * EDGE - width) });
      cuts[1].push({ from: y, to: y + height, more: Math.max(0, h + HEAD + EDGE - height) });
    }
    const [across, down] = cuts.map(stretch);
    const moved = ([x, y]) => [across(x) - x, down(y) - y];
    const shift = (one, [x, y]) => one.setAttribute('transform', x || y ? `translate(${x} ${y})` : '');
    // How far the end of an edge goes that it goes with its node; what returns to the next trip ends beside its own.
    const carried = (name, end) => {
      if (!of.has(name)) return [0, 0];
      const { centre, around } = of.get(name), low = [around.x, around.y], high = [around.x + around.width, around.y + around.height];
      const border = moved(end.map((value, axis) => Math.min(Math.max(value, low[axis]), high[axis])));
      return (opened.has(name) ? border : moved(centre)).map((value, axis) =>
        low[axis] - ARROW < end[axis] && end[axis] < high[axis] + ARROW ? value - moved(end)[axis] : 0);
    };
    for (const shape of shapes) {
      const { group, kind } = shape;
      if (kind === 'node') {
        group.style.display = opened.has(group.id) ? 'none' : '';
        shift(group, moved(shape.centre));
        continue;
      }
      let tip = null;
      for (const { line, name, text } of shape.lines) {
        const points = [...text.matchAll(/(-?[\d.]+)[ ,](-?[\d.]+)/g)].map(one => [+one[1], +one[2]]), last = points.length - 1;
        const ends = kind === 'edge' ? [carried(group.dataset.from, points[0]), carried(group.dataset.to, points[last])] : [[0, 0], [0, 0]];
        const made = points.map((place, n) => moved(place).map((value, axis) => value
          + (1 - n / last) * ends[0][axis] + n / last * ends[1][axis]));
        let n = 0;
        line.setAttribute(name, text.replace(/-?[\d.]+[ ,]-?[\d.]+/g, () => {
          const place = points[n].map((value, axis) => (value + made[n][axis]).toFixed(2));
          n++;
          return place.join(',');
        }));
        tip = made[last];
      }
      shape.loose.forEach((one, n) => shift(one, one.tagName === 'text' ? moved(shape.words) : kind === 'edge' && tip || moved(shape.tips[n])));
    }
    const matrix = graph.transform.baseVal.consolidate().matrix;
    // The lower right corner of the picture, where the graph's own coordinates end.
    const far = point(whole[0] + whole[2], whole[1] + whole[3], matrix.inverse()), grown = moved([far.x, far.y]);
    base = [whole[0], whole[1], whole[2] + grown[0] * matrix.a, whole[3] + grown[1] * matrix.d];
    const paper = graph.querySelector(':scope > polygon');
    if (paper) {
      paper.dataset.points = paper.dataset.points || paper.getAttribute('points');
      const far = Math.max(...paper.dataset.points.split(' ').map(one => +one.split(',')[0]));
      const low = Math.max(...paper.dataset.points.split(' ').map(one => +one.split(',')[1]));
      paper.setAttribute('points', paper.dataset.points.replace(/(-?[\d.]+),(-?[\d.]+)/g,
        (_, x, y) => `${+x + (+x === far ? grown[0] : 0)},${+y + (+y === low ? grown[1] : 0)}`));
    }
    for (const [name, inner] of opened) {
      const { x, y, width, height } = of.get(name).around, left = across(x), top = down(y);
      const w = across(x + width) - left, h = down(y + height) - top;
      const [wide] = folds.get(name).getAttribute('viewBox').split(' ').slice(2).map(Number);
      const [frame, words, content] = inner.children;
      Object.entries({ x: left, y: top, width: w, height: h }).forEach(([key, value]) => frame.setAttribute(key, value));
      words.setAttribute('x', left + 7);
      words.setAttribute('y', top + 13);
      shift(content, [left + (w - wide) / 2, top + HEAD]);
    }
  }
  const SVG = 'http://www.w3.org/2000/svg';
  function unfolded(name) {
    const inner = document.createElementNS(SVG, 'g'), node = nodes[name];
    inner.setAttribute('class', 'unfolded');
    inner.dataset.node = name;
    const frame = inner.appendChild(document.createElementNS(SVG, 'rect'));
    frame.setAttribute('rx', 6);
    const words = inner.appendChild(document.createElementNS(SVG, 'text'));
    words.textContent = node.querySelector('text').textContent;
    const content = inner.appendChild(document.createElementNS(SVG, 'g'));
    [...folds.get(name).children].forEach(child => content.append(child.cloneNode(true)));
    content.querySelectorAll('g.graph > polygon, g.graph > title').forEach(one => one.remove());
    return inner;
  }
  function set(names, open) {
    measure();
    hold(null);
    clear();
    for (const name of names) {
      if (open && !opened.has(name)) opened.set(name, graph.appendChild(unfolded(name)));
      else if (!open && opened.has(name)) { opened.get(name).remove(); opened.delete(name); }
    }
    arrange();
    read();
  }
  function changed() { if (box.shardwright.changed) box.shardwright.changed(held); }
  // The name of the fold that a node is, or that it is shown in.
  const foldOf = group => {
    const around = group && group.closest('g.unfolded');
    return around ? around.dataset.node : group && folds.has(group.id) ? group.id : null;
  };
  function toggle(group) {
    const name = foldOf(group);
    if (!name) return;
    const middleOf = () => { const { x, y, w, h } = area(opened.get(name) || nodes[name]); return [x + w / 2, y + h / 2]; };
    const before = middleOf();
    set([name], !opened.has(name));
    const after = middleOf();
    view[0] += after[0] - before[0];
    view[1] += after[1] - before[1];
    show();
    const inside = opened.get(name);
    choose(inside ? [...inside.querySelectorAll('g.node')].pop() : nodes[name]);
    changed();
  }
  svg.addEventListener('dblclick', event => toggle(event.target.closest('g.node') || event.target.closest('g.unfolded')));

  read();
  box.shardwright = {
    fit, choose, toggle,
    folds: () => folds.size,
    isOpen: () => opened.size > 0,
    all: open => { set([...folds.keys()], open); fit(); changed(); },
    centre: group => {
      const { x, y, w, h } = area(group);
      view[0] = x + w / 2 - view[2] / 2;
      view[1] = y + h / 2 - view[3] / 2;
      show();
    },
    frame: group => {
      const { x, y, w, h } = area(group), ratio = svg.clientWidth / svg.clientHeight, width = Math.max(w, h * ratio) * 1.05;
      view = [x + w / 2 - width / 2, y + h / 2 - width / ratio / 2, width, width / ratio];
      show();
    },
    open: () => {
      const scale = Math.min(svg.clientWidth / base[2], svg.clientHeight / base[3]);
      if (scale >= 0.6) return;
      const width = svg.clientWidth / 0.75;
      view = [base[0], base[1], width, width * svg.clientHeight / svg.clientWidth];
      show();
    },
  };
})();
