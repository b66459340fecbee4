import { useState } from "react";
import { letters } from "../actions.ts";
import { Caps } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import css from "./Keys.module.css";

/** What every key does. Several keys for one line are separated by commas. */
const sections: [name: string, keys: [what: string, keys: string][]][] = [
	[
		"Everywhere",
		[
			["Search and commands", "mod+k"],
			["New session", "c"],
			["Search this list", "/"],
			["Go to inbox, sessions, documents", "g i,g s,g d"],
			["Go to runs, usage", "g r,g u"],
			["Navigation", "["],
			["Light or dark", "mod+shift+l"],
			["This list", "?"],
		],
	],
	[
		"Conversation",
		[
			["Send", "enter"],
			["New line", "shift+enter"],
			["The other way: steer or queue", "mod+enter"],
			["Stop", "mod+."],
			["Edit last message, when empty", "arrowup"],
			["Previous, next question", "alt+arrowup,alt+arrowdown"],
			["Show or hide the document", "mod+\\"],
		],
	],
	[
		"Lists and inbox",
		[
			["Down, up", "j,k"],
			["Open", "enter"],
			["Approve, refuse", "a,r"],
			["Archive", "e"],
			["Select, a range", "x,shift+x"],
			["Undo", "mod+z"],
		],
	],
	["Document", [["Ask the agent about the selection", "mod+j"]]],
];

/** The dialog that lists the keys, and turns those that are single letters off. */
export default function Keys({ onClose }: { onClose: () => void }) {
	const [on, setOn] = useState(letters.on);
	return (
		<Dialog title="Keys" light width={700} onClose={onClose}>
			<div className={css.keys}>
				{sections.map(([name, keys]) => (
					<section key={name}>
						<h3 className="micro">{name}</h3>
						<dl>
							{keys.map(([what, all]) => (
								<div key={what}>
									<dt>{what}</dt>
									<dd>
										{all.split(",").map((k) => (
											<span key={k}>
												<Caps keys={k} />
											</span>
										))}
									</dd>
								</div>
							))}
						</dl>
					</section>
				))}
			</div>
			<label className={css.letters}>
				<input
					type="checkbox"
					checked={on}
					onChange={(e) => {
						letters.set(e.target.checked);
						setOn(e.target.checked);
					}}
				/>
				Keys that are a single letter or sign. They work outside of fields only.
			</label>
		</Dialog>
	);
}
