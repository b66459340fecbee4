// Builds the pages of examples/ with the packages that are installed here, and installs @signalbox/client as others do.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build, defaultClientConditions } from "vite";

const consoleDir = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const clients = path.resolve(consoleDir, "../e2e/node");
const examples = path.resolve(consoleDir, "../../examples");

// Names under which those packages are installed for the end-to-end tests.
const aiSDK = { "@ai-sdk/react": "react7", ai: "ai7" };

/** Resolves the packages of files outside of the console: those of chats from the end-to-end tests' clients, others from the console. */
const installed = {
	name: "installed",
	enforce: "pre",
	resolveId(name, importer) {
		if (!importer || importer.includes("node_modules") || /^[./\0]/.test(name)) return null;
		const chat = importer.startsWith(path.join(examples, "use-chat"));
		return this.resolve(aiSDK[name] ?? name, path.join(chat ? clients : consoleDir, "package.json"), { skipSelf: true });
	},
};

/** Builds a page and serves it at a port. */
export async function servePage(name, port) {
	const { output } = await build({
		root: path.join(examples, name),
		configFile: false,
		logLevel: "error",
		plugins: [installed],
		resolve: { conditions: ["@signalbox/source", ...defaultClientConditions] },
		build: { write: false, target: "es2023", minify: false, modulePreload: false },
	});
	const files = new Map(output.map((f) => [`/${f.fileName}`, f.code ?? f.source]));
	const server = createServer((req, res) => {
		const { pathname } = new URL(req.url, "http://localhost");
		const html = pathname === "/";
		const body = files.get(html ? "/index.html" : pathname);
		res.writeHead(body ? 200 : 404, { "Content-Type": html ? "text/html" : "text/javascript" }).end(body);
	});
	await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
	const stop = () =>
		new Promise((resolve) => {
			server.close(resolve);
			server.closeAllConnections();
		});
	return { stop };
}

/**
 * Packs @signalbox/client, unpacks it in a folder's node_modules, and links the packages that it names
 * from the console's.
 */
export function installClient(folder) {
	const pack = ["pack", "--silent", "--workspace", "@signalbox/client", "--pack-destination", folder];
	execFileSync("npm", pack, { cwd: consoleDir, stdio: ["ignore", "pipe", "inherit"] });
	const modules = path.join(folder, "node_modules");
	const client = path.join(modules, "@signalbox/client");
	mkdirSync(client, { recursive: true });
	execFileSync("tar", ["-xzf", path.join(folder, "signalbox-client-0.0.0.tgz"), "-C", client, "--strip-components", "1"]);
	const { dependencies, peerDependencies } = JSON.parse(readFileSync(path.join(client, "package.json"), "utf8"));
	for (const name of Object.keys({ ...dependencies, ...peerDependencies }))
		symlinkSync(path.join(consoleDir, "node_modules", name), path.join(modules, name));
}

/** Type-checks a TypeScript file strictly, as a bundler and as Node resolve its imports. */
export function checkTypes(file) {
	const tsc = path.join(consoleDir, "node_modules/typescript/bin/tsc");
	for (const modules of [
		["--module", "esnext", "--moduleResolution", "bundler"],
		["--module", "nodenext"],
	])
		execFileSync(process.execPath, [tsc, "--noEmit", "--strict", "--target", "es2023", ...modules, file], {
			cwd: path.dirname(file),
			stdio: "inherit",
		});
}
