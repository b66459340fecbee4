// Starts a Signalbox of its own for the browser tests, and a browser.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { find } from "../../e2e/browser/chromium/find.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
const program = path.join(process.env.SIGNALBOX_E2E_BIN ?? path.join(root, "bin"), "signalbox");

/** Starts Signalbox at a port, with additional settings. Its links sign in once each. */
export async function startSignalbox(port = 0, settings = {}) {
	const data = mkdtempSync(path.join(tmpdir(), "signalbox-console-"));
	const inherited = Object.entries(process.env).filter(([name]) => !/_API_KEY$|^DATABASE_URL$|^NATS_URL$/.test(name));
	const environment = { ...Object.fromEntries(inherited), ...settings };
	const child = spawn(program, ["up", "--data", data, "--http", `127.0.0.1:${port}`], {
		stdio: ["ignore", "pipe", "pipe"],
		env: environment,
	});
	let said = "";
	const link = await new Promise((resolve, reject) => {
		child.stdout.on("data", (d) => {
			said += d;
			const found = /http:\S+\/in#k=\S+/.exec(said);
			if (found && said.includes("Ctrl-C stops it")) resolve(found[0]);
		});
		child.stderr.on("data", (d) => (said += d));
		child.on("error", reject);
		child.on("exit", (code) => reject(new Error(`signalbox up ended with ${code}:\n${said}`)));
	});
	const token = async (...options) => {
		const made = spawn(program, ["token", "--data", data, ...options], { stdio: ["ignore", "pipe", "inherit"], env: environment });
		let out = "";
		for await (const d of made.stdout) out += d;
		return out.trim();
	};
	return {
		link,
		url: new URL(link).origin,
		data,
		/** Returns another link. */
		newLink: () => token("--link", new URL(link).origin),
		/** Returns `{token, workspace_id}` of the owner. */
		newToken: async () => JSON.parse(await token("--json")),
		async stop() {
			const ended = new Promise((resolve) => child.once("exit", resolve));
			child.kill("SIGTERM");
			await ended;
			rmSync(data, { recursive: true, force: true });
		},
	};
}

/**
 * Starts the browser. As root Chromium has no sandbox, and these pages are our own. For it
 * signalbox.test is this computer, but as untrustworthy over plain http as any other.
 */
export async function startBrowser() {
	const args = ["--host-resolver-rules=MAP signalbox.test 127.0.0.1"];
	if (process.getuid?.() === 0) args.push("--no-sandbox");
	return chromium.launch({ ...(await find()), args });
}
