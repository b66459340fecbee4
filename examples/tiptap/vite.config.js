// In this repository the client is TypeScript source; a packed one (its README) needs no such setting.
export default {
	resolve: { conditions: ["@signalbox/source", "module", "browser", "development|production"] },
};
