// Takes the README's screenshots, of the console as it is, after `make build`:
//   node services/console/test/screenshots.mjs
import path from "node:path";
import { fileURLToPath } from "node:url";
import { startBrowser, startSignalbox } from "./signalbox.mjs";

const images = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../docs/images");
const signalbox = await startSignalbox();
const browser = await startBrowser();
try {
	const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
	const shoot = async (name) => {
		await page.waitForTimeout(1000); // for fonts and animations
		await page.screenshot({ path: path.join(images, `${name}.png`) });
	};
	await page.goto(signalbox.link);
	await page.waitForURL(/\/w\/[^/]+\/welcome$/);
	const start = page.url().replace(/\/welcome$/, "");
	await page.goto(start);
	await page.getByLabel("Message", { exact: true }).fill("create a document about tea");
	await page.keyboard.press("Enter");
	await page.getByText("Done. I wrote Tea").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await page.getByRole("button", { name: /Done Create document Tea/ }).waitFor();
	await shoot("session");
	await page.goto(`${start}/runs`);
	await page.getByRole("row").nth(1).getByRole("link").first().click();
	await page.waitForURL(/\/runs\/./);
	await shoot("run");
} finally {
	await browser.close();
	await signalbox.stop();
}
