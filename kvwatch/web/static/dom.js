// Draws a tree of plain values into the document and changes only what differs, so that focus, scroll position and open parts
// survive every refresh. Data reaches the document as text and attribute values only, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const drawn = new WeakMap(); // node -> the value it was drawn from

/** A value of an element. `key` tells siblings apart that may move; null, undefined and false among the children are left out. */
export function h(tag, props, ...children) {
  const { key, ...rest } = props ?? {};
  return { tag, key, props: rest, children: children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false) };
}

/** Characters that would turn the words after them around, spelled out as everywhere else. */
const legible = (text) => text.replace(/\p{Bidi_Control}/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

/** Make the children of `parent` look like `children`. */
export function draw(parent, children) {
  const focused = document.activeElement;
  reconcile(parent, children.filter(Boolean));
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true }); // it was moved
}

function reconcile(parent, children) {
  const kept = new Map();
  const wanted = new Set(children.map((child) => child.key).filter((key) => key !== undefined));
  for (const node of [...parent.childNodes]) {
    const key = drawn.get(node)?.key;
    if (key === undefined) continue;
    if (wanted.has(key)) kept.set(key, node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const child of children) {
    const node = place(parent, child, at, kept);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** The node for a child: the one already there when it fits, else a new one. */
function place(parent, child, at, kept) {
  if (typeof child !== "object") {
    const text = legible(String(child));
    if (at?.nodeType !== Node.TEXT_NODE) return document.createTextNode(text);
    if (at.data !== text) at.data = text;
    return at;
  }
  let node = child.key === undefined ? at : kept.get(child.key);
  const before = node && drawn.get(node);
  if (!before || before.tag !== child.tag || before.key !== child.key) {
    node = document.createElementNS(child.tag === "svg" ? SVG : parent.namespaceURI, child.tag);
    update(node, child, {});
  } else if (before !== child) {
    update(node, child, before.props);
  }
  return node;
}

function update(node, child, before) {
  for (const name of Object.keys(before)) if (!(name in child.props)) set(node, name, null);
  for (const [name, value] of Object.entries(child.props)) if (value !== before[name]) set(node, name, value);
  drawn.set(node, child);
  reconcile(node, child.children);
}

function set(node, name, value) {
  if (name.startsWith("on") || name === "open" || name === "hidden") node[name] = value ?? (name.startsWith("on") ? null : false);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : legible(String(value)));
}
