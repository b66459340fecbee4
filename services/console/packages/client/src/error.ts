/** An error that the gateway answered with, or a network that could not reach it (status 0). */
export class SignalboxError extends Error {
	override readonly name = "SignalboxError";
	constructor(
		/** What was wrong and what to do, for people. */
		message: string,
		/** The HTTP status; 0 if there was no answer. */
		readonly status: number,
		/** For programs; absent if the status is specific enough. */
		readonly code?: string,
		/** Milliseconds to wait before another try, if the gateway said so. */
		readonly retryAfter?: number,
	) {
		super(message);
	}

	/** Reads the error from an answer. */
	static async from(response: Response): Promise<SignalboxError> {
		const body = await response.json().catch(() => undefined);
		return SignalboxError.of(body, response);
	}

	/** Makes the error of an answer whose body was read. */
	static of(body: unknown, response: Response): SignalboxError {
		const said = typeof body === "object" && body !== null ? (body as { error?: unknown; code?: unknown }) : {};
		const seconds = Number(response.headers.get("Retry-After"));
		return new SignalboxError(
			typeof said.error === "string" ? said.error : `The server answered ${response.status}.`,
			response.status,
			typeof said.code === "string" ? said.code : undefined,
			seconds > 0 ? seconds * 1000 : undefined,
		);
	}
}
