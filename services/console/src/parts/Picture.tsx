import { Suspense, useState } from "react";
import type { File } from "../live/conversation.ts";
import { later } from "./later.tsx";
import css from "./Picture.module.css";

/** Fetched when a picture is opened. */
const Dialog = later(() => import("./Dialog.tsx").then((m) => m.Dialog));

/** The width of a dialog without its picture. */
const edges = 42;

/** A picture in small, of the same size whatever its own is. It opens the whole one. */
export function Picture({ of: { url, name } }: { of: File }) {
	const [width, setWidth] = useState<number>();
	return (
		<figure className={css.picture}>
			<button
				type="button"
				className={css.open}
				aria-label={`Open ${name}`}
				aria-haspopup="dialog"
				onClick={(e) => setWidth(e.currentTarget.querySelector("img")?.naturalWidth ?? 0)}
			>
				<img src={url} alt="" />
			</button>
			<figcaption className="cut" title={name}>
				{name}
			</figcaption>
			{width !== undefined && (
				<Suspense>
					<Dialog title={name} width={Math.max(360, width + edges)} light onClose={() => setWidth(undefined)}>
						<img className={css.whole} src={url} alt={name} />
					</Dialog>
				</Suspense>
			)}
		</figure>
	);
}
