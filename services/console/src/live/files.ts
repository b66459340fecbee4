import type { File as Attached } from "./conversation.ts";

/** The files of one message may have so many bytes together: base64 makes a third more of them, and the server takes 20 MB. */
export const mostBytes = 14_000_000;
const mostFiles = 20;

/** Reads files for a message. What does not fit is left out, and the error says the limit. */
export async function readFiles(files: readonly File[], have: readonly Attached[]): Promise<{ read: Attached[]; error: string }> {
	const read: Attached[] = [];
	let error = "";
	let bytes = have.reduce((sum, f) => sum + f.url.length * 0.75, 0);
	for (const f of files) {
		if (have.length + read.length >= mostFiles) error = `A message has at most ${mostFiles} files.`;
		else if (f.size === 0) error = `${f.name} is empty, or a folder.`;
		else if (bytes + f.size > mostBytes)
			error = `${f.name} has ${(f.size / 1e6).toFixed(1)} MB. The files of one message have at most ${mostBytes / 1e6} MB together.`;
		else {
			bytes += f.size;
			read.push({ url: await dataUrl(f), mediaType: f.type || "application/octet-stream", name: f.name || "picture.png" });
		}
	}
	return { read, error };
}

const dataUrl = (f: File) =>
	new Promise<string>((resolve, reject) => {
		const r = new FileReader();
		r.onload = () => resolve(r.result as string);
		r.onerror = () => reject(r.error);
		r.readAsDataURL(f);
	});

/** A message's content for the API. */
export function contentFor(text: string, files: readonly Attached[]) {
	if (files.length === 0) return text;
	return [
		...(text ? [{ type: "text" as const, text }] : []),
		...files.map((f) => ({ type: "file" as const, mediaType: f.mediaType, data: f.url.slice(f.url.indexOf(",") + 1), filename: f.name })),
	];
}

/** A fetch that says how much of its body has been sent: the browser's own cannot. */
export const uploading =
	(workspace: string, onSent: (part: number) => void) =>
	async (request: Request): Promise<Response> => {
		const body = await request.arrayBuffer();
		return new Promise((resolve, reject) => {
			const x = new XMLHttpRequest();
			x.open(request.method, request.url);
			for (const [name, value] of request.headers) x.setRequestHeader(name, value);
			x.setRequestHeader("X-Workspace-Id", workspace);
			x.upload.onprogress = (e) => e.lengthComputable && onSent(e.loaded / e.total);
			x.onload = () =>
				resolve(
					new Response(x.responseText, {
						status: x.status,
						headers: x
							.getAllResponseHeaders()
							.trim()
							.split(/\r?\n/)
							.map((l): [string, string] => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 1).trim()]),
					}),
				);
			x.onerror = () => reject(new TypeError("network"));
			x.send(body);
		});
	};
