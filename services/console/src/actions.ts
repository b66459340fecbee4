/**
 * What a person can do on the page that is open: each action has its key, its name in the palette,
 * or both. A page registers its actions while it is shown; those of the page shown last win.
 */
import type { LucideIcon } from "lucide-react";
import { useEffect, useRef } from "react";
import { storage } from "./storage.ts";

export interface Action {
	/** As the palette shows it; without it the action has a key only. */
	name?: string;
	/** "c", "g i", "?", "mod+k", "alt+arrowup"; mod is ⌘, or Ctrl where there is none. */
	keys?: string;
	icon?: LucideIcon;
	/** Also while a person writes. Keys without mod or alt never are. */
	run: () => void;
}

export const mac = /Mac|iP/.test(navigator.platform);

const lists = new Set<{ current: readonly Action[] }>();
let prefix = "";
let forget: ReturnType<typeof setTimeout>;

/** Registers actions until the component leaves the page. The list may change at each render. */
export function useActions(actions: readonly Action[]): void {
	const list = useRef(actions);
	useEffect(() => {
		list.current = actions;
	});
	useEffect(() => {
		lists.add(list);
		return () => void lists.delete(list);
	}, []);
}

/** All registered actions, those registered last first. */
export const actions = (): Action[] => [...lists].reverse().flatMap((l) => l.current);

/** Whether keys that are single letters work. WCAG 2.1.4 wants them to have a switch. */
export const letters = {
	on: (): boolean => storage.get("letters") !== "off",
	set: (on: boolean): void => storage.set("letters", on ? "on" : "off"),
};

/** True while an input method composes: its Return and Escape are not the page's. */
export const composes = (e: { isComposing: boolean; keyCode: number }): boolean => e.isComposing || e.keyCode === 229;

const isField = (e: KeyboardEvent): boolean => {
	const at = e.target;
	return (
		at instanceof HTMLElement &&
		(at.isContentEditable || (/^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) && !at.matches("[type=checkbox], [type=radio]")))
	);
};

/** A key as `keys` writes it. */
export function keyOf(e: KeyboardEvent): string {
	const key = e.key === " " ? "space" : e.key.toLowerCase();
	const letter = key.length > 1 || /[a-z0-9]/.test(key) || e.metaKey || e.ctrlKey;
	return `${e.metaKey || e.ctrlKey ? "mod+" : ""}${e.altKey ? "alt+" : ""}${e.shiftKey && letter ? "shift+" : ""}${key}`;
}

function onKeyDown(e: KeyboardEvent): void {
	if (composes(e) || e.defaultPrevented || ["Shift", "Control", "Meta", "Alt"].includes(e.key)) return;
	const key = keyOf(e);
	const plain = !/^(mod|alt)\+/.test(key);
	if (isField(e) && (plain || key === "mod+z")) return;
	if (plain && key.length === 1 && !letters.on()) return;
	const found = (prefix && actions().find((a) => a.keys === `${prefix} ${key}`)) || actions().find((a) => a.keys === key);
	clearTimeout(forget);
	prefix = "";
	if (found) {
		e.preventDefault();
		found.run();
	} else if (plain && actions().some((a) => a.keys?.startsWith(`${key} `))) {
		prefix = key;
		forget = setTimeout(() => (prefix = ""), 1000);
	}
}

addEventListener("keydown", onKeyDown);

const symbols: Record<string, string> = {
	mod: mac ? "⌘" : "Ctrl",
	alt: mac ? "⌥" : "Alt",
	shift: "⇧",
	enter: "↵",
	arrowup: "↑",
	arrowdown: "↓",
	arrowleft: "←",
	arrowright: "→",
	escape: "esc",
};

/** The caps to show for `keys`: ["⌘", "K"]. */
export const caps = (keys: string): string[] => keys.split(/[+ ]/).map((k) => symbols[k] ?? (k.length === 1 ? k.toUpperCase() : k));
