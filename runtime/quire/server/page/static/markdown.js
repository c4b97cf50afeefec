/**
 * Markdown of a model as elements: headings, lists, quotes, tables, code, emphasis, links.
 *
 * Everything is made of text nodes, so that nothing a model writes becomes HTML. Images are links: a picture would be a request to
 * wherever the model likes. Nesting is bounded, and no text takes more than about its length in time.
 */
import { copyButton, element } from "./dom.js";

const MAX_DEPTH = 6;
const MAX_LINK_CHARS = 1000;
const LINK = /^(https?:\/\/|mailto:)[^\s<>"]+$/i;
const BARE_LINK = /https?:\/\/[^\s<>"`*]+/iy;
const PIECE = /`+|[*_~]+|[^\\`*_~[!<hH\n]+|[^]/y; // of plain text: what cannot begin anything, at once
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const BLANK = /^[ \t]*$/;

/** A place whose text is Markdown that grows: only blocks that changed are made again. */
export class Markdown {
  #place;
  #shown = [];

  constructor(place) {
    this.#place = place;
  }

  update(text) {
    const blocks = parse(text.split(/\r\n?|\n/), 0);
    blocks.forEach((block, index) => {
      const source = `${block.kind}\n${block.source}`;
      if (this.#shown[index] === source) return;
      const made = make(block, 0);
      if (index < this.#shown.length) this.#place.children[index].replaceWith(made);
      else this.#place.append(made);
      this.#shown[index] = source;
    });
    while (this.#shown.length > blocks.length) {
      this.#shown.pop();
      this.#place.lastElementChild.remove();
    }
  }
}

// --- blocks ---

/** Lines as blocks: {kind, source, ...}. */
function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const begin = at;
    let block;
    [block, at] = next(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(begin, at).join("\n") });
  }
  return blocks;
}

/** The block at a line that is not blank, and the line behind it. */
function next(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: `h${heading[1].length}`, text: title(heading[2] ?? "") }, at + 1];
  if (RULE.test(line)) return [{ kind: "hr" }, at + 1];
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return quote(lines, at);
    if (ITEM.test(line)) return list(lines, at);
  }
  if (isTable(lines, at)) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && !interrupts(lines, end)) end += 1;
  return [{ kind: "p", text: lines.slice(at, end).map((part) => part.trim()).join("\n") }, end];
}

function interrupts(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(lines, at);
}

function title(text) {
  const whole = text.trim();
  let end = whole.length;
  while (end > 0 && whole[end - 1] === "#") end -= 1;
  return end === 0 || whole[end - 1] === " " ? whole.slice(0, end).trimEnd() : whole;
}

function code(lines, at, fence) {
  const mark = fence[1];
  const inside = [];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) {
      at += 1;
      break;
    }
    inside.push(lines[at]);
  }
  return [{ kind: "code", text: inside.join("\n"), language: fence[2].trim().split(/\s/)[0].slice(0, 30) }, at];
}

function quote(lines, at) {
  const inside = [];
  for (; at < lines.length && QUOTE.test(lines[at]); at += 1) inside.push(lines[at].replace(QUOTE, ""));
  return [{ kind: "blockquote", lines: inside }, at];
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let blank = false;
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const mark = ITEM.exec(line);
    const indent = line.length - line.trimStart().length;
    if (BLANK.test(line)) {
      items.at(-1).lines.push("");
      blank = true;
      continue;
    }
    if (mark && mark[1].length <= first[1].length + 1 && /\d/.test(mark[2]) === ordered && !RULE.test(line)) {
      items.push({ width: mark[0].length, lines: [line.slice(mark[0].length)] });
    } else if (indent >= Math.min(items.at(-1).width, first[1].length + 2)) {
      items.at(-1).lines.push(line.slice(Math.min(indent, items.at(-1).width)));
    } else if (!blank && !mark && !interrupts(lines, at)) {
      items.at(-1).lines.push(line.trim()); // a lazy line of the item's paragraph
    } else {
      break;
    }
    blank = false;
  }
  return [{ kind: ordered ? "ol" : "ul", start: parseInt(first[2], 10) || 1, items: items.map((item) => item.lines) }, at];
}

function cells(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|")) return false;
  const rule = lines[at + 1];
  if (!rule.includes("-") || !rule.includes("|") || /[^|:\- \t]/.test(rule)) return false;
  const columns = cells(rule);
  return columns.every((cell) => /^:?-+:?$/.test(cell)) && columns.length === cells(lines[at]).length;
}

function table(lines, at) {
  const head = cells(lines[at]);
  const aligned = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const rows = [];
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) rows.push(cells(lines[at]));
  return [{ kind: "table", head, aligned, rows }, at];
}

// --- elements ---

function make(block, depth) {
  switch (block.kind) {
    case "hr":
      return element("hr");
    case "code":
      return codeBlock(block);
    case "blockquote":
      return element("blockquote", {}, ...parse(block.lines, depth + 1).map((inner) => make(inner, depth + 1)));
    case "ul":
    case "ol":
      return listElement(block, depth);
    case "table":
      return tableElement(block);
    default:
      return element(block.kind, {}, ...inline(block.text));
  }
}

function codeBlock({ text, language }) {
  const bar = element("div", { class: "code-bar" }, element("span", {}, language || "code"), copyButton(() => text));
  const pre = element("pre", { tabIndex: 0, role: "region", "aria-label": "Code" }, element("code", {}, text));
  return element("div", { class: "code" }, bar, pre);
}

function listElement({ kind, start, items }, depth) {
  const made = element(kind, kind === "ol" && start !== 1 ? { start } : {});
  for (const lines of items) {
    const blocks = parse(lines, depth + 1);
    // A paragraph that stands alone in an item, or before a list, needs no margins.
    const tight = blocks.filter((block) => block.kind === "p").length <= 1;
    const inside = blocks.map((block) => (tight && block.kind === "p" ? element("span", {}, ...inline(block.text)) : make(block, depth + 1)));
    made.append(element("li", {}, ...inside));
  }
  return made;
}

function tableElement({ head, aligned, rows }) {
  const row = (tag, texts) =>
    element("tr", {}, ...head.map((_, i) => element(tag, aligned[i] ? { class: aligned[i] } : {}, ...inline(texts[i] ?? ""))));
  const whole = element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((texts) => row("td", texts))));
  return element("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": "Table" }, whole);
}

// --- inside of a line ---

const INSIDE_LINK = MAX_DEPTH + 1; // there is neither emphasis nor another link

const EMPHASIS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

/** Text with code, emphasis and links as nodes. */
function inline(text, depth = 0) {
  const nodes = [];
  const hopeless = new Set(); // marks that nothing ends any more
  let plain = "";
  let at = 0;
  const push = (node, end) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    at = end;
  };
  while (at < text.length) {
    const found = special(text, at, depth, hopeless);
    if (found) {
      push(...found);
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      PIECE.lastIndex = at;
      const [piece] = PIECE.exec(text);
      plain += piece;
      at += piece.length;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The node that begins here and where it ends, or nothing. */
function special(text, at, depth, hopeless) {
  switch (text[at]) {
    case "\n":
      return [element("br"), at + 1];
    case "`":
      return codeSpan(text, at, hopeless);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, depth, "image: ") : null;
    case "[":
      return link(text, at, depth, "");
    case "<": {
      const end = depth === INSIDE_LINK ? -1 : text.indexOf(">", at);
      return end > at && end - at < MAX_LINK_CHARS && LINK.test(text.slice(at + 1, end)) ? [anchor(text.slice(at + 1, end)), end + 1] : null;
    }
    case "h":
    case "H":
      return bareLink(text, at, depth);
    case "*":
    case "_":
    case "~":
      return depth < MAX_DEPTH ? emphasis(text, at, depth, hopeless) : null;
    default:
      return null;
  }
}

function codeSpan(text, at, hopeless) {
  let end = at;
  while (text[end] === "`") end += 1;
  const mark = text.slice(at, end);
  if (hopeless.has(mark)) return null;
  for (let close = text.indexOf(mark, end); close >= 0; ) {
    let behind = close;
    while (text[behind] === "`") behind += 1;
    if (behind - close === mark.length) {
      const inside = text.slice(end, close).replaceAll("\n", " ");
      const padded = inside.length > 2 && inside.startsWith(" ") && inside.endsWith(" ");
      return [element("code", {}, padded ? inside.slice(1, -1) : inside), behind];
    }
    close = text.indexOf(mark, behind);
  }
  hopeless.add(mark);
  return null;
}

function emphasis(text, at, depth, hopeless) {
  const mark = text[at + 1] === text[at] ? text.slice(at, at + 2) : text[at];
  const begin = at + mark.length;
  if (!(mark in EMPHASIS) || hopeless.has(mark) || /^\s?$/.test(text[begin] ?? "")) return null;
  if (mark[0] === "_" && isWord(text[at - 1])) return null;
  for (let close = text.indexOf(mark, begin + 1); close >= 0; close = text.indexOf(mark, close + 1)) {
    let behind = close + mark.length;
    if (text[behind] === mark[0]) {
      if (mark.length === 1) {
        while (text[behind] === mark[0]) behind += 1; // a longer mark inside: not ours
        close = behind - 1;
        continue;
      }
      close += 1; // of three the outer two
      behind += 1;
    }
    if (/\s/.test(text[close - 1]) || (mark[0] === "_" && isWord(text[behind]))) continue;
    return [element(EMPHASIS[mark], {}, ...inline(text.slice(begin, close), depth + 1)), behind];
  }
  hopeless.add(mark);
  return null;
}

function link(text, at, depth, prefix) {
  if (depth === INSIDE_LINK) return null;
  let open = 0;
  let end = at;
  for (; end < text.length && end - at < MAX_LINK_CHARS; end += 1) {
    if (text[end] === "[") open += 1;
    else if (text[end] === "]" && --open === 0) break;
  }
  if (text[end] !== "]" || text[end + 1] !== "(") return null;
  const close = text.indexOf(")", end);
  if (close < 0 || close - end > MAX_LINK_CHARS) return null;
  const target = text.slice(end + 2, close).trim().split(/\s/)[0];
  if (!LINK.test(target)) return null;
  const label = text.slice(at + 1, end);
  return [anchor(target, [prefix, ...(label ? inline(label, INSIDE_LINK) : [target])]), close + 1];
}

function bareLink(text, at, depth) {
  if (depth === INSIDE_LINK || isWord(text[at - 1])) return null;
  BARE_LINK.lastIndex = at;
  const found = BARE_LINK.exec(text);
  if (!found) return null;
  let end = found[0].length;
  while (end > 0 && ".,;:!?)]}'".includes(found[0][end - 1])) end -= 1; // ends of the sentence around it
  const target = found[0].slice(0, end);
  return LINK.test(target) ? [anchor(target), at + end] : null;
}

function anchor(target, children = [target]) {
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function isWord(character) {
  return character !== undefined && /[\p{L}\p{N}]/u.test(character);
}
