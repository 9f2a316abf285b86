// Bundles gallery.tsx into one script:   node tests/gallery.mjs FILE
import path from 'node:path';
import { rspack } from '@rspack/core';

const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const out = path.resolve(process.argv[2]);
const compiler = rspack({
  mode: 'development',
  devtool: false,
  entry: path.join(here, 'gallery.tsx'),
  output: { path: path.dirname(out), filename: path.basename(out) },
  resolve: {
    extensions: ['.tsx', '.ts', '.js'],
    alias: { [path.join(here, '../src/draw/shardview')]: path.join(here, '../../jaxcluster/static/shardview/index.js') }
  },
  module: {
    rules: [
      {
        test: /\.tsx?$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript', tsx: true }, target: 'es2021' } }
      }
    ]
  },
  plugins: [new rspack.DefinePlugin({ 'process.env.NODE_ENV': '"production"' })],
  optimization: { nodeEnv: false }
});
compiler.run((error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString({ all: false, errors: true }));
    process.exit(1);
  }
});
