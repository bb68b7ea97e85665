// The small parts that all views are made of.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { set } from "./routing";

export function Panel(props: { title: string; aside?: ComponentChildren; children: ComponentChildren }): JSX.Element {
  return <section class="panel">
    <header><h2>{props.title}</h2><div class="aside">{props.aside}</div></header>
    {props.children}
  </section>;
}

/** A place where there is nothing: why, and what to do. */
export const Empty = (props: { title: string; children?: ComponentChildren }): JSX.Element => (
  <div class="empty" role="status"><strong>{props.title}</strong><p>{props.children}</p></div>
);

/** What stands where an answer is awaited, or was refused. */
export const Waiting = (props: { error?: string }): JSX.Element =>
  props.error ? <Empty title="This cannot be shown now">{props.error}</Empty> : <div class="waiting">Reading…</div>;

/** The search of a view, in the address as `q`; `/` focuses it. */
export const Search = (props: { label: string; value: string }): JSX.Element => (
  <input type="search" class="search" aria-label={props.label} placeholder={props.label} value={props.value}
    onInput={(event) => set({ q: event.currentTarget.value || null })} />
);

export function Choice(props: { label: string; value: string; options: [string, string][]; name: string }): JSX.Element {
  return <label class="choice">
    <span>{props.label}</span>
    <select value={props.value} onChange={(event) => set({ [props.name]: event.currentTarget.value || null })}>
      {props.options.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
    </select>
  </label>;
}

export const Toggle = (props: { on: boolean; label: ComponentChildren; act: () => void; title?: string }): JSX.Element => (
  <button type="button" class="toggle" aria-pressed={props.on} title={props.title} onClick={props.act}>{props.label}</button>
);

/** A table that scrolls sideways by itself where the window is narrow; cells that begin with a number align right. */
export function Table(props: {
  label: string; head: string[]; rows: ComponentChildren[][]; left?: number[]; keys?: string[];
}): JSX.Element {
  const side = (column: number) => (column === 0 || props.left?.includes(column) ? "" : "right");
  return <div class="scroll" role="region" aria-label={props.label} tabIndex={0}>
    <table>
      <thead>
        <tr>{props.head.map((text, column) => <th key={text} scope="col" class={side(column)}>{text}</th>)}</tr>
      </thead>
      <tbody>
        {props.rows.map((row, index) => <tr key={props.keys?.[index] ?? index}>
          {row.map((cell, column) => <td key={column} class={side(column)} data-label={props.head[column]}>{cell}</td>)}
        </tr>)}
      </tbody>
    </table>
  </div>;
}

export function Meter(props: { label: string; share: number; text: string; warnAt?: number }): JSX.Element {
  const isFull = props.share >= (props.warnAt ?? 2);
  return <div class="meter">
    <span>{props.label}</span>
    <span class="value">{isFull && "⚠ "}{props.text}</span>
    <div class="bar" aria-hidden="true">
      <i class={isFull ? "full" : ""} style={{ width: `${Math.min(100, Math.max(0, 100 * props.share))}%` }} />
    </div>
  </div>;
}

/** Text with its matches marked. */
export function Marked({ text, query }: { text: string; query: string }): JSX.Element {
  if (!query) return <>{text}</>;
  const parts = text.split(new RegExp(`(${query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")})`, "gi"));
  return <>{parts.map((part, index) => (index % 2 ? <mark key={index}>{part}</mark> : part))}</>;
}

/** The list without the item, or with it. */
export const toggled = (list: string[], item: string): string[] =>
  list.includes(item) ? list.filter((one) => one !== item) : [...list, item];

export const has = (text: string, query: string): boolean => text.toLowerCase().includes(query.toLowerCase());

export const Facts = (props: { facts: [string, ComponentChildren][]; look?: string }): JSX.Element => (
  <dl class={props.look}>{props.facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
);

/**
 * A searchable list of things to choose, in the address as `name`; each has a name and a note. It opens below its button,
 * and closes by Escape or a click elsewhere.
 */
export function Picker(props: {
  label: string; search: string; name: string; items: [string, string][]; chosen: string[]; most: number;
}): JSX.Element {
  const [query, setQuery] = useState("");
  const root = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      const node = root.current;
      if (!node?.open) return;
      if (event instanceof KeyboardEvent ? event.key !== "Escape" : node.contains(event.target as Node)) return;
      node.open = false;
      if (event instanceof KeyboardEvent) node.querySelector("summary")?.focus();
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => (document.removeEventListener("pointerdown", close), document.removeEventListener("keydown", close));
  }, []);
  const { chosen } = props;
  const found = props.items.filter((item) => has(item.join(" "), query));
  return <details class="popover" ref={root}>
    <summary>{props.label}</summary>
    <div class="sheet">
      <input type="search" class="search" aria-label={props.search} placeholder={props.search} value={query}
        onInput={(event) => setQuery(event.currentTarget.value)} />
      <ul class="picks">
        {found.map(([item, note]) => <li key={item}>
          <label>
            <input type="checkbox" checked={chosen.includes(item)}
              disabled={!chosen.includes(item) && chosen.length >= props.most}
              onChange={() => set({ [props.name]: toggled(chosen, item) })} />
            <span>{item}</span><small>{note}</small>
          </label>
        </li>)}
      </ul>
      {found.length === 0 && <p class="quiet">Nothing has “{query}” in its name.</p>}
    </div>
  </details>;
}
