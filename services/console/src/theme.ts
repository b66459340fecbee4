import { storage } from "./storage.ts";

export type Theme = "light" | "dark" | "system";

const key = "theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export const theme = (): Theme => (storage.get(key) as Theme | null) ?? "system";

/** Shows the chosen theme, and follows the system's where that is the choice. */
export function applyTheme(): void {
	const t = theme();
	document.documentElement.dataset.theme = t === "system" ? (dark.matches ? "dark" : "light") : t;
}

dark.addEventListener("change", applyTheme);

/** Changes between light and dark. */
export function toggleTheme(): void {
	storage.set(key, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
	applyTheme();
}
